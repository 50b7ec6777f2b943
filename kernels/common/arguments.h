// Shared by all operations: argument checks, backend selection, and dispatch from a run-time
// element type to a compile-time one.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/dtype.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// The argument checks of one operation. Each throws an Error that names the operation, the
// argument, its value and the requirement.
class Arguments {
 public:
  explicit constexpr Arguments(const char* operation) : operation_(operation) {}

  // float32, bfloat16 or float16, of this rank; `form` describes the shape: "[rows, columns]".
  void require_floats(const TensorView& tensor, const char* name, int rank, const char* form) const;
  // Exactly this type and shape.
  void require(const TensorView& tensor, const char* name, DType dtype,
               std::initializer_list<std::int64_t> shape) const;
  // Row-major without gaps, aligned for its elements, and not nullptr unless it is empty.
  void require_dense(const TensorView& tensor, const char* name) const;
  void require_dense(const TensorView& tensor, const char* name, DType dtype,
                     std::initializer_list<std::int64_t> shape) const {
    require(tensor, name, dtype, shape);
    require_dense(tensor, name);
  }
  // The second half of require_dense().
  void require_memory(const TensorView& tensor, const char* name) const;
  // 16-byte vector loads are possible: every vector begins at a multiple of 16 bytes.
  void require_vectors(const TensorView& tensor, const char* name) const;

  const char* operation() const { return operation_; }

 private:
  const char* operation_;
};

// Calls function(float{}), function(Bf16{}) or function(F16{}), for a type that require_floats()
// accepted.
template <typename Function>
decltype(auto) with_element_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32: return function(float{});
    case DType::bf16: return function(Bf16{});
    default: return function(F16{});
  }
}

}  // namespace nvllm::kernels

// cuda::call or cpu::call, by the backend of the stream. A build without CUDA has only the latter.
#ifdef NVLLM_CUDA
#define NVLLM_ON_BACKEND(stream, call) \
  ((stream).kind() == DeviceKind::cuda ? cuda::call : cpu::call)
#else
#define NVLLM_ON_BACKEND(stream, call) cpu::call
#endif
