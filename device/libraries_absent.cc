#include "device/libraries.h"

namespace nvllm {

LibraryState find_cublaslt() {
  return {.version = "", .error = "this program was built without CUDA"};
}

LibraryState find_nccl() {
  return {.version = "", .error = "this program was built without NCCL"};
}

}  // namespace nvllm
