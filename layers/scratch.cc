#include "layers/scratch.h"

#include "base/check.h"

namespace nvllm::layers {

TensorView Scratch::take(DType dtype, std::int64_t rows, std::int64_t columns) {
  const std::size_t bytes = bytes_of(dtype, rows, columns);
  NVLLM_CHECK(bytes <= bytes_ - used_, bytes, " bytes of scratch memory; ", bytes_ - used_, " of ",
              bytes_, " are left");
  const TensorView tensor(data_ + used_, dtype, {rows, columns});
  used_ += bytes;
  return tensor;
}

}  // namespace nvllm::layers
