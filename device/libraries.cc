#include "device/libraries.h"

#include <cublasLt.h>
#include <nccl.h>

#include "base/text.h"
#include "device/cublaslt.h"
#include "device/nccl.h"

namespace nvllm {

LibraryState find_cublaslt() {
  if (const char* why = load_cublaslt()) return {.version = "", .error = why};
  const std::size_t version = cublasLtGetVersion();  // 130100 is 13.1.0
  return {.version = str(version / 10000, '.', version / 100 % 100, '.', version % 100),
          .error = ""};
}

LibraryState find_nccl() {
  if (const char* why = load_nccl()) return {.version = "", .error = why};
  int version = 0;  // 22707 is 2.27.7
  if (ncclGetVersion(&version) != ncclSuccess) return {.version = "?", .error = ""};
  return {.version = str(version / 10000, '.', version / 100 % 100, '.', version % 100),
          .error = ""};
}

}  // namespace nvllm
