#include "kernels/gemm/sm90/small_m_launch.cuh"

namespace nvllm::kernels::cuda {

void launch_small_m_int4(const GemmCall& call, cudaStream_t stream) {
  small_m::launch_quantized<small_m::QuantizedWeights<WeightFormat::int4, Bf16>>(call, stream);
}

}  // namespace nvllm::kernels::cuda
