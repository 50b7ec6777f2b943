// GEMVs with weights in int4.
#include "kernels/gemm/sm80/quantized_gemv_launch.cuh"

namespace nvllm::kernels::cuda {

NVLLM_DEFINE_QUANTIZED_GEMV(Bf16, int4)
NVLLM_DEFINE_QUANTIZED_GEMV(F16, int4)

}  // namespace nvllm::kernels::cuda
