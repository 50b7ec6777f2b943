// GEMVs with weights in fp8.
#include "kernels/gemm/sm80/quantized_gemv_launch.cuh"

namespace nvllm::kernels::cuda {

NVLLM_DEFINE_QUANTIZED_GEMV(Bf16, fp8)
NVLLM_DEFINE_QUANTIZED_GEMV(F16, fp8)

}  // namespace nvllm::kernels::cuda
