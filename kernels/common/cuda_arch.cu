#include "kernels/common/cuda_arch.h"

namespace nvllm::kernels::cuda {
namespace {

__global__ void any_kernel() {}

// The architecture that the code which this GPU runs was compiled for: 90 for sm_90a; 80 for code
// of compute capability 8.0 that the driver has compiled for a later GPU. All .cu files are
// compiled for the same architectures.
int code_architecture() {
  static const int version = [] {
    cudaFuncAttributes attributes{};
    nvllm::cuda::check(cudaFuncGetAttributes(&attributes, any_kernel), "looking for GPU code");
    return attributes.ptxVersion;
  }();
  return version;
}

}  // namespace

bool has_pdl() {
  return code_architecture() >= 90;
}

bool has_clusters() {
  return code_architecture() >= 90;
}

}  // namespace nvllm::kernels::cuda
