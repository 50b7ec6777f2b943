// What the two kernels of all_reduce and rms_norm in one have in common.
#pragma once

#include "ipc/collective/peer_launch.cuh"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::ipc::peer {

inline constexpr int kMaxVectors = 2048;  // a row's: 32 KiB
inline constexpr int kMaxChunks = kMaxVectors / 32;

// Tensors of rows that are whole vectors.
template <typename T>
struct NormParams {
  T* out;
  const T* x;
  T* residual;  // nullptr: none
  const T* weight;
  int columns;
  int vectors;  // of a row
  float inverse_columns;
  float epsilon;
};

template <typename T>
NormParams<T> norm_params(const kernels::RmsNorm& args, int vectors) {
  return {args.out.as<T>(),
          args.x.as<T>(),
          args.residual.as<T>(),
          args.weight.as<T>(),
          static_cast<int>(args.x.shape[1]),
          vectors,
          1.0f / static_cast<float>(args.x.shape[1]),
          args.epsilon};
}

// The 16-byte vectors of a row; 0: rows are not made of such, or too long.
inline int vectors_of(const kernels::RmsNorm& args) {
  const std::int64_t bytes = args.x.shape[1] * static_cast<std::int64_t>(size_of(args.x.dtype));
  constexpr std::int64_t kVector = sizeof(uint4);
  return bytes % kVector != 0 || bytes > kMaxVectors * kVector ? 0
                                                               : static_cast<int>(bytes / kVector);
}

}  // namespace nvllm::ipc::peer
