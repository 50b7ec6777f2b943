// What prompt policies share: long prompts are worked on in segments of rows, so that lists of what is kept take
// a bounded amount of memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/sparse/sparse_attention.h"
#include "kvcache/policies/prompt_policy.h"

namespace nvllm::kvcache {

// A multiple of all tiles of rows, the largest of which are XAttention's on Hopper: 128 strided rows.
inline constexpr std::int64_t kSegmentRows = 2048;
inline constexpr std::int64_t kSegmentBytes = std::int64_t{64} << 20;

// As many rows as need no more than kSegmentBytes, or kSegmentRows if that is more.
inline std::int64_t segment_rows(std::int64_t rows, std::int64_t bytes_of_row) {
  const std::int64_t fitting = kSegmentBytes / std::max<std::int64_t>(bytes_of_row, 1);
  const std::int64_t most = std::max(fitting / kSegmentRows, std::int64_t{1}) * kSegmentRows;
  return std::min(rows, most);
}

// Rows [first, first + count) of a call.
inline kernels::PromptRows segment_of(const kernels::PromptRows& rows, std::int64_t first,
                                      std::int64_t count) {
  kernels::PromptRows part = rows;
  part.q = rows.q.rows(first, count);
  part.first_position += first;
  return part;
}

inline kernels::SparseAttention sparse_of(const kernels::PromptRows& rows, const TensorView& out) {
  kernels::SparseAttention args;
  args.out = out;
  args.q = rows.q;
  args.kv = rows.kv;
  args.group = rows.group;
  args.first_head = rows.first_head;
  args.scale = rows.scale;
  args.first_position = rows.first_position;
  return args;
}

}  // namespace nvllm::kvcache
