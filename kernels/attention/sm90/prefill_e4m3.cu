// Prefill attention on Hopper to a cache of E4m3 (prefill_launch.cuh).
#include "kernels/attention/sm90/prefill_launch.cuh"

namespace nvllm::kernels::cuda {

template bool attention_prefill_sm90<E4m3Cache<Bf16>, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<E4m3Cache<Bf16>, true>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<E4m3Cache<F16>, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<E4m3Cache<F16>, true>(const Attention&, cudaStream_t);

}  // namespace nvllm::kernels::cuda
