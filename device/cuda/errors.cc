#include "base/error.h"
#include "device/cuda/stream.h"

namespace nvllm::cuda {

void fail_cuda(cudaError_t error, std::string_view what) {
  cudaGetLastError();  // a call that failed without harm shall not fail the next one too
  fail(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

}  // namespace nvllm::cuda
