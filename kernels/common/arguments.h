// What the operations share before they start: checks of their arguments, the choice of a backend,
// and the way from an element type at run time to one at compile time.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/dtype.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// The checks of one operation. Each throws an Error that names the operation, the argument, what it
// is and what it must be.
class Arguments {
 public:
  explicit constexpr Arguments(const char* operation) : operation_(operation) {}

  // float32, bfloat16 or float16, and of this rank; `form` says what that is: "[rows, columns]".
  void require_floats(const TensorView& tensor, const char* name, int rank, const char* form) const;
  // Of exactly this type and shape.
  void require(const TensorView& tensor, const char* name, DType dtype,
               std::initializer_list<std::int64_t> shape) const;
  // Row-major without gaps, at an address where its elements may lie, and not nowhere if it has
  // any.
  void require_dense(const TensorView& tensor, const char* name) const;
  void require_dense(const TensorView& tensor, const char* name, DType dtype,
                     std::initializer_list<std::int64_t> shape) const {
    require(tensor, name, dtype, shape);
    require_dense(tensor, name);
  }
  // The second half of require_dense().
  void require_memory(const TensorView& tensor, const char* name) const;
  // Each vector of 16 bytes can be loaded at once: it begins at a multiple of 16 bytes.
  void require_vectors(const TensorView& tensor, const char* name) const;

  const char* operation() const { return operation_; }

 private:
  const char* operation_;
};

// function(float{}), function(Bf16{}) or function(F16{}): of a type that require_floats() let pass.
template <typename Function>
decltype(auto) with_element_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32: return function(float{});
    case DType::bf16: return function(Bf16{});
    default: return function(F16{});
  }
}

}  // namespace nvllm::kernels

// cuda::call or cpu::call, whichever is the backend of the stream. A build without CUDA has the
// latter alone.
#ifdef NVLLM_CUDA
#define NVLLM_ON_BACKEND(stream, call) \
  ((stream).kind() == DeviceKind::cuda ? cuda::call : cpu::call)
#else
#define NVLLM_ON_BACKEND(stream, call) cpu::call
#endif
