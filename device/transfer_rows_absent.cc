#include "base/error.h"
#include "device/transfer_rows.h"

namespace nvllm {

void copy_two_dimensional(const Rows&, Stream&) {
  fail("built without CUDA: no two-dimensional copies");
}

}  // namespace nvllm
