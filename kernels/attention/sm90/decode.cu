// Decode attention on Hopper to a cache of the rows' type (decode_launch.cuh).
#include "kernels/attention/sm90/decode_launch.cuh"

namespace nvllm::kernels::cuda {

template bool attention_decode_sm90<Bf16, false>(const Attention& args, cudaStream_t stream);
template bool attention_decode_sm90<Bf16, true>(const Attention& args, cudaStream_t stream);
template bool attention_decode_sm90<F16, false>(const Attention& args, cudaStream_t stream);
template bool attention_decode_sm90<F16, true>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
