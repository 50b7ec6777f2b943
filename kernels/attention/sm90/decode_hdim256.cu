// Decode attention on Hopper with heads of 256 elements (decode_launch.cuh).
#include "kernels/attention/sm90/decode_launch.cuh"

namespace nvllm::kernels::cuda {

template bool attention_decode_sm90<256, Bf16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<256, Bf16, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<256, F16, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<256, F16, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<256, E4m3Cache<Bf16>, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<256, E4m3Cache<Bf16>, true>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<256, E4m3Cache<F16>, false>(const Attention&, cudaStream_t);
template bool attention_decode_sm90<256, E4m3Cache<F16>, true>(const Attention&, cudaStream_t);

}  // namespace nvllm::kernels::cuda
