#include "kernels/gemm/sm90/small_m_launch.cuh"

namespace nvllm::kernels::cuda {

void launch_small_m_fp8_rows(const GemmCall& call, const Fp8Rows& rows, cudaStream_t stream) {
  small_m::launch_quantized<small_m::Fp8Weights<Bf16>>(call, stream, rows);
}

}  // namespace nvllm::kernels::cuda
