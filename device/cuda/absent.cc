// Stands in for the CUDA backend where the program is built without CUDA.
#include "base/error.h"
#include "device/cuda/backend.h"

namespace nvllm {

bool cuda_built() {
  return false;
}

std::unique_ptr<Backend> cuda::create_backend() {
  fail(
      "this program was built without CUDA; install the CUDA toolkit and build again, or use the "
      "CPU");
}

}  // namespace nvllm
