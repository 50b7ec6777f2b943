// Decode attention on Hopper to a cache of E4m3 (decode_launch.cuh).
#include "kernels/attention/sm90/decode_launch.cuh"

namespace nvllm::kernels::cuda {

template bool attention_decode_sm90<E4m3Cache<Bf16>, false>(const Attention& args,
                                                            cudaStream_t stream);
template bool attention_decode_sm90<E4m3Cache<Bf16>, true>(const Attention& args,
                                                           cudaStream_t stream);
template bool attention_decode_sm90<E4m3Cache<F16>, false>(const Attention& args,
                                                           cudaStream_t stream);
template bool attention_decode_sm90<E4m3Cache<F16>, true>(const Attention& args,
                                                          cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
