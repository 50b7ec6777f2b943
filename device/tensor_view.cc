#include "device/tensor_view.h"

#include <immintrin.h>

#include "base/check.h"
#include "base/error.h"

namespace nvllm {

float to_float(F16 value) {
  return _cvtsh_ss(value.bits);
}

template <>
F16 from_float<F16>(float value) {
  return {_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)};
}

TensorView::TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape)
    : data(data), dtype(dtype), rank(static_cast<int>(shape.size())) {
  NVLLM_CHECK_LE(rank, kMaxRank);
  int axis = 0;
  for (const std::int64_t extent : shape) {
    NVLLM_CHECK_LE(0, extent);
    this->shape[axis++] = extent;
  }
  std::int64_t step = 1;
  for (axis = rank - 1; axis >= 0; --axis) {
    stride[axis] = step;
    step *= this->shape[axis];
  }
}

std::int64_t TensorView::elements() const {
  std::int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= shape[axis];
  return count;
}

bool TensorView::contiguous() const {
  std::int64_t step = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    // The stride of an axis with one element is irrelevant.
    if (shape[axis] != 1 && stride[axis] != step) return elements() == 0;
    step *= shape[axis];
  }
  return true;
}

bool TensorView::aligned(std::size_t bytes) const {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

std::string TensorView::describe() const {
  std::string text = str(name_of(dtype), " [");
  for (int axis = 0; axis < rank; ++axis) text += str(axis == 0 ? "" : ", ", shape[axis]);
  return text + "]";
}

void require_contiguous(const TensorView& tensor, const char* operation, const char* argument) {
  if (tensor.contiguous()) return;
  std::string strides;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    strides += str(axis == 0 ? "" : ", ", tensor.stride[axis]);
  }
  fail(operation, ": ", argument, " is ", tensor.describe(), " with strides [", strides,
       "]; it must be dense and row-major");
}

}  // namespace nvllm
