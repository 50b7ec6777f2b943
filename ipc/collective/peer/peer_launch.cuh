// Shared host code of the peer kernels: choosing a kernel's instance and grid, and launching it;
// and the parameters of the kernels fused with RMSNorm.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cuda/stream.h"
#include "ipc/collective/peer/peer_protocol.cuh"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::ipc::peer {

inline constexpr int kThreads = 512;

// The grid for `words` words, one per thread if they fit. Blocks wait for the blocks of equal index
// on other GPUs, so all of a grid must run concurrently: at most one per multiprocessor.
inline dim3 grid_for(const Links& links, std::int64_t words, int threads) {
  const std::int64_t wanted = (words + threads - 1) / threads;
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, links.multiprocessors)));
}

// For few words: smaller blocks on more multiprocessors, each with its own path to the links.
inline int threads_for(std::int64_t words) {
  return words <= 128 * 64 ? 128 : words <= 128 * 128 ? 256 : kThreads;
}

// Launches a kernel. With links.hopper, `cluster` blocks form a cluster; otherwise `cluster` is 1.
template <typename... Params, typename... Args>
void launch(const char* what, void (*kernel)(Links, Params...), const Links& links, dim3 grid,
            int threads, int cluster, cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = attributes;
  if (links.hopper != 0) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& blocks = attributes[config.numAttrs++];
    blocks.id = cudaLaunchAttributeClusterDimension;
    blocks.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  cuda::check(cudaLaunchKernelEx(&config, kernel, links, args...), what);
}

template <typename Function>
void dispatch_ranks(int ranks, Function function) {
  if (ranks <= 2) return function.template operator()<2>();
  if (ranks == 3) return function.template operator()<3>();
  if (ranks == 4) return function.template operator()<4>();
  function.template operator()<8>();
}

// Calls function.template operator()<T, kRanks>() for the element type and the number of ranks.
template <typename Function>
void dispatch(DType type, int ranks, Function function) {
  auto by_ranks = [&]<typename T>() {
    dispatch_ranks(ranks, [&]<int kRanks>() { function.template operator()<T, kRanks>(); });
  };
  switch (type) {
    case DType::f32: return by_ranks.template operator()<float>();
    case DType::bf16: return by_ranks.template operator()<Bf16>();
    default: return by_ranks.template operator()<F16>();
  }
}

inline bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(uint4) == 0;
}

// Elements begin .. begin + kElements of a tensor that ends at `end`; zeros after it.
template <typename T>
__device__ __forceinline__ Vector<T> load_part(const T* data, std::int64_t begin, std::int64_t end,
                                               bool aligned) {
  const std::int64_t left = end - begin;
  if (aligned && left >= Vector<T>::kElements) return kernels::load_vector(data + begin);
  return kernels::load_elements(data + begin, left < 0    ? 0
                                              : left > 16 ? 16
                                                          : static_cast<int>(left));
}

template <typename T>
__device__ __forceinline__ void store_part(T* data, std::int64_t begin, std::int64_t end,
                                           bool aligned, const Vector<T>& value) {
  const std::int64_t left = end - begin;
  if (aligned && left >= Vector<T>::kElements) {
    kernels::store_vector(data + begin, value);
  } else {
    kernels::store_elements(data + begin, value,
                            left < 0    ? 0
                            : left > 16 ? 16
                                        : static_cast<int>(left));
  }
}

// --- Shared by the two kernels that fuse all_reduce with rms_norm ---

inline constexpr int kMaxVectors = 2048;  // a row's: 32 KiB
inline constexpr int kMaxChunks = kMaxVectors / 32;

// Tensors whose rows are multiples of whole vectors.
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

// Number of 16-byte vectors in a row; 0: rows are not multiples of these, or too long.
inline int vectors_of(const kernels::RmsNorm& args) {
  const std::int64_t bytes = args.x.shape[1] * static_cast<std::int64_t>(size_of(args.x.dtype));
  constexpr std::int64_t kVector = sizeof(uint4);
  return bytes % kVector != 0 || bytes > kMaxVectors * kVector ? 0
                                                               : static_cast<int>(bytes / kVector);
}

}  // namespace nvllm::ipc::peer
