// The host's part of attention on Hopper: how bulk copies see the cache, and where there are any.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

#include "device/cuda/stream.h"
#include "kernels/attention/sm90/attention_tiles.cuh"
#include "kernels/common/sm90/tma.cuh"

namespace nvllm::kernels::cuda::sm90 {

// A tensor of heads of D elements, in boxes of kHalf of them; dimensions: from the second innermost on.
template <typename T, int D, std::size_t kDimensions>
CUtensorMap describe(const void* data, const std::array<Dimension, kDimensions>& dimensions) {
  std::array<Dimension, kDimensions + 1> all{{{D, 1, kHalf}}};
  std::copy(dimensions.begin(), dimensions.end(), all.begin() + 1);
  return describe_tensor("attention", dtype_of<T>, data, all);
}

// A layer's keys or values, in boxes of some tokens of a head, of one block or of several that follow each other.
template <typename T, int D>
CUtensorMap describe(const TensorView& cache, int box_tokens, int box_blocks = 1) {
  return describe<T, D, 3>(cache.data, {{{cache.shape[1], cache.stride[1], box_tokens},
                                         {cache.shape[2], cache.stride[2], 1},
                                         {cache.shape[0], cache.stride[0], box_blocks}}});
}

// The queries, in boxes of so many packed rows: the heads of a group of some rows.
template <typename T, int D>
CUtensorMap describe_queries(const Attention& args, int packed_rows) {
  return describe<T, D, 2>(args.q.data,
                           {{{args.q.shape[1], args.q.stride[1], args.group},
                             {args.q.shape[0], args.q.stride[0], packed_rows / args.group}}});
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

// Whether a tile is several whole blocks.
inline bool blocks_make_tiles(const kernels::KvView& kv, const Boxes& boxes) {
  return boxes.bulk && kv.block_table.data != nullptr && boxes.tokens == boxes.block_size &&
         boxes.tokens < kTokens;
}

// Whether the packed rows of a KV head are whole groups, of which a tile holds some.
inline bool queries_are_boxes(const Attention& args) {
  const std::int64_t row = args.q.stride[0];
  return args.first_head % args.group == 0 && args.q.shape[1] % args.group == 0 &&
         args.group <= kRows && args.q.shape[0] > 0 && args.q.aligned(16) && row > 0 &&
         row % 8 == 0 && row < std::int64_t{1} << 39;
}

// Whether the bulk copies and products of sm_90a do for these heads here.
inline bool serves(const Attention& args) {
  const std::int64_t head_dim = args.q.shape[2];
  return (head_dim == 64 || head_dim == 128) && args.scale > 0 && args.out.aligned(16) &&
         is_hopper();
}

}  // namespace nvllm::kernels::cuda::sm90
