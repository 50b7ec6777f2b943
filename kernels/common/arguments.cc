#include "kernels/common/arguments.h"

#include <algorithm>

#include "base/error.h"

namespace nvllm::kernels {

void Arguments::require_floats(const TensorView& tensor, const char* name, int rank,
                               const char* form) const {
  const DType type = tensor.dtype;
  if (type != DType::f32 && type != DType::bf16 && type != DType::f16) {
    fail(operation_, ": ", name, " is ", tensor.describe(),
         "; it must be float32, bfloat16 or float16");
  }
  if (tensor.rank != rank) {
    fail(operation_, ": ", name, " is ", tensor.describe(), "; it must be ", form);
  }
}

void Arguments::require(const TensorView& tensor, const char* name, DType dtype,
                        std::initializer_list<std::int64_t> shape) const {
  if (tensor.dtype == dtype && tensor.rank == static_cast<int>(shape.size()) &&
      std::equal(shape.begin(), shape.end(), tensor.shape.begin())) {
    return;
  }
  fail(operation_, ": ", name, " is ", tensor.describe(), "; it must be ",
       TensorView(nullptr, dtype, shape).describe());
}

void Arguments::require_dense(const TensorView& tensor, const char* name) const {
  require_contiguous(tensor, operation_, name);
  require_memory(tensor, name);
}

void Arguments::require_memory(const TensorView& tensor, const char* name) const {
  if (tensor.data == nullptr && tensor.elements() > 0) {
    fail(operation_, ": ", name, ", ", tensor.describe(), ", has no memory");
  }
  // The types have the size of their alignment.
  if (!tensor.aligned(size_of(tensor.dtype))) {
    fail(operation_, ": ", name, " lies at ", tensor.data, ", which is no address of a ",
         name_of(tensor.dtype));
  }
}

void Arguments::require_vectors(const TensorView& tensor, const char* name) const {
  if (tensor.elements() > 0 && !tensor.aligned(16)) {
    fail(operation_, ": ", name, " lies at ", tensor.data,
         "; it must start at a multiple of 16 bytes");
  }
}

}  // namespace nvllm::kernels
