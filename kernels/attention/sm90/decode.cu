// Decode attention on Hopper to a cache of the rows' type (decode_launch.cuh).
#include "kernels/attention/sm90/decode_launch.cuh"

namespace nvllm::kernels::cuda {

template bool attention_decode_sm90<64, Bf16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<64, Bf16, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<64, F16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<64, F16, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<128, Bf16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<128, Bf16, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<128, F16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<128, F16, true>(const Attention&, cudaStream_t);

}  // namespace nvllm::kernels::cuda
