// What attention on the CPU is made of: for each instruction set and element type, a function that attends
// to a range of tokens. attention.cc divides the work; attention_tile.h holds the loops, which are compiled
// once per instruction set (attention_avx2.cc and attention_avx512.cc).
//
// The query heads of a KV head share its keys and values, so the rows of one sequence and one KV head are
// seen as packed rows: packed row i is head i % group_heads of query row i / group_heads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "kernels/attention/attention.h"
#include "kernels/common/cpu/instruction_set.h"

namespace nvllm::kernels::cpu {

inline constexpr int kTileRows = 64;              // packed rows that are worked on at once
inline constexpr int kTileTokens = 64;            // and the tokens they meet at once
inline constexpr std::int64_t kHeadPadding = 16;  // heads are filled up with zeros to a multiple

// Rows of a sequence and heads of a KV head, which they share.
struct AttentionGroup {
  std::int64_t sequence, kv_head;
  std::int64_t first_row, rows;          // of q
  std::int64_t first_head, group_heads;  // of q
  std::int64_t tokens;                   // that the last row sees
  std::int64_t first_visible;            // how many the first one sees; may be less than none

  std::int64_t packed_rows() const { return rows * group_heads; }
  // The tokens that a packed row sees; none if it is 0 or less.
  std::int64_t visible(std::int64_t packed_row) const {
    return std::min(tokens, first_visible + packed_row / group_heads);
  }
  // The element of q, of out (which is dense), and of lse where the packed row's head begins.
  std::int64_t in_q(const Attention& args, std::int64_t packed_row) const {
    return (first_row + packed_row / group_heads) * args.q.stride[0] +
           (first_head + packed_row % group_heads) * args.q.shape[2];
  }
  std::int64_t in_lse(const Attention& args, std::int64_t packed_row) const {
    return (first_row + packed_row / group_heads) * args.q.shape[1] + first_head +
           packed_row % group_heads;
  }
  std::int64_t in_out(const Attention& args, std::int64_t packed_row) const {
    return in_lse(args, packed_row) * args.q.shape[2];
  }
};

// One sequence and one KV head of checked arguments.
AttentionGroup attention_group(const Attention& args, std::int64_t sequence, std::int64_t kv_head);

// The rows' weighted values, not yet divided by the sum of their weights, which are relative to
// 2^highest.
struct PartialRows {
  float* out;  // [rows][head_dim, padded]
  float* highest;
  float* sum;
};

// `rows` <= kTileRows packed rows from first_row on and the tokens [first_token, end_token); with a list,
// those of its entries that have these numbers.
struct AttentionPart {
  std::int32_t sequence, kv_head;
  std::int32_t rows;
  std::int64_t first_row;
  std::int64_t first_token, end_token;
  float*
      partial;  // for a part of the tokens: [rows][head_dim, padded], then [rows] highest, [rows] sum;
                // nullptr: these are all tokens, and the result goes to out and lse
  const std::int32_t* list = nullptr;  // of tokens, ascending
};

constexpr std::int64_t padded_head(std::int64_t head_dim) {
  return (head_dim + kHeadPadding - 1) / kHeadPadding * kHeadPadding;
}
constexpr std::int64_t partial_floats(std::int64_t rows, std::int64_t head_dim) {
  return rows * (padded_head(head_dim) + 2);
}
inline PartialRows partial_rows(float* floats, std::int64_t rows, std::int64_t head_dim) {
  float* highest = floats + rows * padded_head(head_dim);
  return {floats, highest, highest + rows};
}

// Puts one row of `count` parts together, in their order: their average goes to out, [head_dim], what it returns is
// the log-sum-exp. part(i): the PartialRows of part i.
template <typename Part>
float merge_row(std::int64_t count, std::int64_t row, std::int64_t head_dim, const Part& part,
                float* out) {
  float highest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < count; ++i) highest = std::max(highest, part(i).highest[row]);
  const float reference = std::isinf(highest) && highest < 0 ? 0 : highest;
  float sum = 0;
  std::fill_n(out, head_dim, 0.0f);
  for (std::int64_t i = 0; i < count; ++i) {
    const PartialRows rows = part(i);
    const float weight = std::exp2(rows.highest[row] - reference);
    const float* values = rows.out + row * padded_head(head_dim);
    for (std::int64_t d = 0; d < head_dim; ++d) out[d] += weight * values[d];
    sum += weight * rows.sum[row];
  }
  const float factor = sum == 0 ? 0 : 1 / sum;
  for (std::int64_t d = 0; d < head_dim; ++d) out[d] *= factor;
  return (highest + std::log2(sum)) * 0.6931471805599453f;
}

// A thread's memory for one part after another: 280 KiB, on its stack.
struct alignas(64) AttentionScratch {
  float q[kTileRows * kMaxHeadDim];         // [rows][head_dim], scaled for exponents of 2
  float keys[kMaxHeadDim * kTileTokens];    // [head_dim][tokens]
  float values[kTileTokens * kMaxHeadDim];  // [tokens][head_dim]
  float out[kTileRows * kMaxHeadDim];       // [rows][head_dim]
  float weights[kTileRows * kTileTokens];   // [rows][tokens]: first scores
  float highest[kTileRows], sum[kTileRows], fade[kTileRows];
  // Where the tokens of this tile and of the next one lie in the cache, in elements.
  std::int64_t places[kTileTokens], next_places[kTileTokens];
};

using AttendPart = void (*)(const Attention& args, const AttentionGroup& group,
                            const AttentionPart& part, AttentionScratch& scratch);

// For float32, bfloat16 or float16. To be called only where the processor has the instructions. The bits
// that come out are the same however rows are put together and tokens cut at multiples of kTileTokens, but
// differ between instruction sets.
AttendPart attend_part_avx2(DType type);
AttendPart attend_part_avx512(DType type);

// The best one that this processor has, or `set` if that is less.
AttendPart attend_part(DType type, std::optional<InstructionSet> set);

}  // namespace nvllm::kernels::cpu
