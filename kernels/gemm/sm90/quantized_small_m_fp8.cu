#include "kernels/gemm/sm90/quantized_small_m.cuh"

namespace nvllm::kernels::cuda {

void launch_small_m_fp8(const GemmCall& call, cudaStream_t stream) {
  small_m::launch_quantized<WeightFormat::fp8>(call, stream);
}

}  // namespace nvllm::kernels::cuda
