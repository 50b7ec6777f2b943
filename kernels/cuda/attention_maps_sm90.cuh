// The host's part of attention on Hopper: how bulk copies see the cache, and where there are any.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/attention_tiles_sm90.cuh"

namespace nvllm::kernels::cuda::sm90 {

// A layer's keys or values as bulk copies see them.
template <typename T, int D>
CUtensorMap describe(const TensorView& cache, int box_tokens) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    nvllm::cuda::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &found),
                       "looking for cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto size = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t shape[] = {size(D), size(cache.shape[1]), size(cache.shape[2]),
                              size(cache.shape[0])};
  const cuuint64_t strides[] = {size(cache.stride[1] * 2), size(cache.stride[2] * 2),
                                size(cache.stride[0] * 2)};
  const cuuint32_t box[] = {kHalf, static_cast<cuuint32_t>(box_tokens), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map,
             dtype_of<T> == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, cache.data, shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail("attention: describing the cache to the GPU: CUresult ", result);
  return map;
}

// Strides are told in bytes, in multiples of 16, below 2^40.
inline bool can_be_described(const TensorView& cache) {
  if (cache.shape[0] == 0 || !cache.aligned(16)) return false;
  return std::all_of(cache.stride.begin(), cache.stride.begin() + 3, [](std::int64_t stride) {
    return stride > 0 && stride % 8 == 0 && stride < std::int64_t{1} << 39;
  });
}

// Boxes do not cross blocks.
inline Boxes boxes_for(const kernels::KvView& kv) {
  const bool paged = kv.block_table.data != nullptr;
  const auto block_size = static_cast<int>(kv.block_size());
  const int tokens = paged ? std::gcd(block_size, kTokens) : kTokens;
  if (tokens < kLeastBoxTokens || !can_be_described(kv.keys) || !can_be_described(kv.values)) {
    return {.bulk = false, .tokens = 1, .block_size = block_size};
  }
  return {.bulk = true, .tokens = tokens, .block_size = block_size};
}

// Whether the bulk copies and products of sm_90a do for these heads here.
inline bool is_hopper() {
  return nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

inline bool serves(const Attention& args) {
  const std::int64_t head_dim = args.q.shape[2];
  return (head_dim == 64 || head_dim == 128) && args.scale > 0 && is_hopper();
}

}  // namespace nvllm::kernels::cuda::sm90
