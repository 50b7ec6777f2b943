// TensorView: the address, element type and layout of a tensor. Non-owning.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "device/dtype.h"

namespace nvllm {

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};   // in elements; [0] is the outermost
  std::array<std::int64_t, kMaxRank> stride{};  // in elements

  TensorView() = default;

  // Dense and row-major.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape);

  std::int64_t elements() const;  // how many the shape gives
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  bool contiguous() const;                // dense and row-major
  bool aligned(std::size_t bytes) const;  // data is a multiple of `bytes`
  std::string describe() const;           // "bfloat16 [4, 1024]"

  // Returns a view of some rows, which are the outermost dimension.
  TensorView rows(std::int64_t begin, std::int64_t count) const {
    TensorView part = *this;
    part.data = as<unsigned char>() + static_cast<std::size_t>(begin * stride[0]) * size_of(dtype);
    part.shape[0] = count;
    return part;
  }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// For kernels that assume dense tensors and would otherwise misread memory: throws an Error that
// names the operation and the argument.
void require_contiguous(const TensorView& tensor, const char* operation, const char* argument);

}  // namespace nvllm
