// Prefill attention on Hopper to a cache of the rows' type (prefill_launch.cuh).
#include "kernels/attention/sm90/prefill_launch.cuh"

namespace nvllm::kernels::cuda {

template bool attention_prefill_sm90<Bf16, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<Bf16, true>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<F16, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<F16, true>(const Attention&, cudaStream_t);

}  // namespace nvllm::kernels::cuda
