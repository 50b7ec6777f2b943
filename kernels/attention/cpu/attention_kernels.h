// The parts of attention on the CPU that its callers share: tasks, partial results and how they are
// combined. For each instruction set and element type there is a function that runs a task.
// attention.cc divides the work into tasks; attention_tile.cc holds the loops and is compiled once
// per instruction set.
//
// The query heads of a KV head share its keys and values, so the rows of one sequence and one KV
// head are seen as packed rows: packed row i is head i % group_heads of query row i / group_heads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "kernels/attention/attention.h"
#include "kernels/common/cpu/instruction_set.h"

namespace nvllm::kernels::cpu {

inline constexpr int kTileRows = 64;    // packed rows of a tile
inline constexpr int kTileTokens = 64;  // tokens of a tile
// Tokens of a segment. A row's sums are taken over each segment, and the segments are combined in
// order, in prefill and in decode: segment boundaries depend only on token positions.
inline constexpr std::int64_t kSegmentTokens = 256;
inline constexpr std::int64_t kHeadPadding = 16;  // heads are padded with zeros to a multiple

// The rows of a sequence and the query heads that share one KV head.
struct AttentionGroup {
  std::int64_t sequence, kv_head;
  std::int64_t first_row, rows;          // of q
  std::int64_t first_head, group_heads;  // of q
  std::int64_t tokens;                   // that the last row attends to
  std::int64_t first_visible;            // how many the first row attends to; may be negative
  std::int64_t window = 0;               // a row attends to the last `window` of them; 0: all

  std::int64_t packed_rows() const { return rows * group_heads; }
  // How many tokens a packed row attends to; none if 0 or negative.
  std::int64_t visible(std::int64_t packed_row) const {
    return std::min(tokens, first_visible + packed_row / group_heads);
  }
  // The first token that it attends to, if any.
  std::int64_t first_seen(std::int64_t packed_row) const {
    if (window == 0) return 0;
    return std::max<std::int64_t>(0, first_visible + packed_row / group_heads - window);
  }
  // The packed row's head of q.
  std::int64_t head(std::int64_t packed_row) const { return first_head + packed_row % group_heads; }
  // The index, in elements, where the packed row's head begins in q, in out (which is dense), and
  // in lse.
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

// The sink of a head of q; -infinity: none.
float sink_of(const Attention& args, std::int64_t head);

// The group of one sequence and one KV head of checked arguments.
AttentionGroup attention_group(const Attention& args, std::int64_t sequence, std::int64_t kv_head);
// The group of a single row of q, which attends to `tokens` tokens; does not read sequence lengths.
AttentionGroup row_group(const Attention& args, std::int64_t sequence, std::int64_t kv_head,
                         std::int64_t row, std::int64_t tokens);

// Weighted values of some rows, relative to 2^row_max and not yet divided by the sums of their
// weights.
struct PartialRows {
  float* out;  // [rows][head_dim, padded]
  float* row_max;
  float* sum;
};

// The first token of a token's segment.
constexpr std::int64_t segment_start(std::int64_t token) {
  return token / kSegmentTokens * kSegmentTokens;
}

// Up to kTileRows packed rows from first_row on, and the tokens [first_token, end_token), starting
// at a segment boundary. With a list, these are indices into the list.
struct AttentionTask {
  std::int32_t sequence = 0, kv_head = 0;
  std::int32_t rows = 0;
  std::int64_t first_row = 0;
  std::int64_t first_token = 0, end_token = 0;
  // Memory for a partial result over some of the tokens: [rows][head_dim, padded], then [rows]
  // row_max, [rows] sum, without the values' scale. nullptr: these are all tokens, and the result
  // goes to out and lse.
  float* partial = nullptr;
  const std::int32_t* list = nullptr;  // token list, ascending; nullptr: all tokens
};

constexpr std::int64_t padded_head(std::int64_t head_dim) {
  return (head_dim + kHeadPadding - 1) / kHeadPadding * kHeadPadding;
}
constexpr std::int64_t partial_floats(std::int64_t rows, std::int64_t head_dim) {
  return rows * (padded_head(head_dim) + 2);
}
inline PartialRows partial_rows(float* floats, std::int64_t rows, std::int64_t head_dim) {
  float* row_max = floats + rows * padded_head(head_dim);
  return {floats, row_max, row_max + rows};
}

// In an unnamed namespace for the reason that lanes_avx2.h gives.
namespace {

// Factors of a row's sums of earlier segments, relative to 2^row_max, and of those of the next
// segment, relative to 2^next_max, before the two are added.
struct CombineWeights {
  float before, next, row_max;

  CombineWeights(float earlier_max, float next_max)
      : before(1), next(1), row_max(earlier_max < next_max ? next_max : earlier_max) {
    const float none = -std::numeric_limits<float>::infinity();
    const float reference = row_max == none ? 0 : row_max;
    // The other factor is 1.
    if (earlier_max != reference) before = std::exp2(earlier_max - reference);
    if (next_max != reference) next = std::exp2(next_max - reference);
  }
};

// The final factor of a row's weighted values, and its log-sum-exp. Its weights are relative to
// 2^row_max and add up to `sum`; the values have their own scale. sink: of its head, or -infinity.
struct RowEnd {
  float factor, lse;

  RowEnd(float row_max, float sum, float value_scale, float sink) {
    constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
    if (sink != -std::numeric_limits<float>::infinity()) {
      const CombineWeights weights(row_max, sink * kLog2E);
      sum = std::fma(weights.before, sum, weights.next);
      value_scale *= weights.before;
      row_max = weights.row_max;
    }
    factor = sum == 0 ? 0 : value_scale / sum;
    lse = (row_max + std::log2(sum)) * kLn2;
  }
};

// One row of partial results, combined in order and bit-identical to a task that combines its own
// segments (attention_tile.cc).
class CombinedRow {
 public:
  CombinedRow(float* out, std::int64_t head_dim) : out_(out), head_dim_(head_dim) {}

  void add(const PartialRows& partial, std::int64_t row) {
    const float* values = partial.out + row * padded_head(head_dim_);
    if (empty_) {
      std::copy_n(values, head_dim_, out_);
      row_max_ = partial.row_max[row], sum_ = partial.sum[row];
      empty_ = false;
      return;
    }
    const CombineWeights weights(row_max_, partial.row_max[row]);
    for (std::int64_t d = 0; d < head_dim_; ++d)
      out_[d] = std::fma(weights.next, values[d], weights.before * out_[d]);
    sum_ = std::fma(weights.next, partial.sum[row], weights.before * sum_);
    row_max_ = weights.row_max;
  }

  // Stores it as a partial result.
  void store(const PartialRows& partial, std::int64_t row) const {
    std::copy_n(out_, head_dim_, partial.out + row * padded_head(head_dim_));
    partial.row_max[row] = row_max_, partial.sum[row] = sum_;
  }

  // Writes the weighted average of the scaled values to `out`, and returns the log-sum-exp.
  float finish(float value_scale, float sink = -std::numeric_limits<float>::infinity()) {
    if (empty_) std::fill_n(out_, head_dim_, 0.0f);
    const RowEnd end(row_max_, sum_, value_scale, sink);
    for (std::int64_t d = 0; d < head_dim_; ++d) out_[d] *= end.factor;
    return end.lse;
  }

 private:
  float* const out_;  // [head_dim]
  const std::int64_t head_dim_;
  bool empty_ = true;
  float row_max_ = -std::numeric_limits<float>::infinity(), sum_ = 0;
};

}  // namespace

// A thread's scratch memory, reused from task to task: 345 KiB, on its stack.
struct alignas(64) AttentionScratch {
  float q[kTileRows * kMaxHeadDim];         // [rows][head_dim], scaled for exponents of 2
  float keys[kMaxHeadDim * kTileTokens];    // [head_dim][tokens]
  float values[kTileTokens * kMaxHeadDim];  // [tokens][head_dim]
  float out[kTileRows * kMaxHeadDim];       // [rows][head_dim]
  float weights[kTileRows * kTileTokens];   // [rows][tokens]: scores, then weights
  float row_max[kTileRows], sum[kTileRows], rescale[kTileRows];
  // The combined results of the earlier segments, if any.
  float total_out[kTileRows * kMaxHeadDim], total_max[kTileRows], total_sum[kTileRows];
  // Offsets of this and the next tile's tokens in the cache, in elements.
  std::int64_t offsets[kTileTokens], next_offsets[kTileTokens];
};

using AttendTask = void (*)(const Attention& args, const AttentionGroup& group,
                            const AttentionTask& partial, AttentionScratch& scratch);

// For queries of float32, bfloat16 or float16 and a cache of the same type, or of E4m3 (DType::u8).
// Requires a processor with these instructions. The result's bits do not depend on how rows are
// grouped, nor on whether segments are separate tasks that a CombinedRow adds up, but they differ
// between instruction sets.
AttendTask attend_task_avx2(DType type, DType kv_type);
AttendTask attend_task_avx512(DType type, DType kv_type);

// The function of the best instruction set of this processor, at most `set`.
AttendTask attend_task(DType type, DType kv_type, std::optional<InstructionSet> set);

}  // namespace nvllm::kernels::cpu
