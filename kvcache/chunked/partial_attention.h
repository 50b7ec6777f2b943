// PartialAttention: computes the attention of a step's rows in parts, as parts of their tokens
// become readable, and combines the parts by their log-sum-exp.
//
//   parts.compute_first_part(attention over what is readable at once, stream);  // of all rows
//   parts.compute_part(attention of some rows over other tokens, row, stream);  // per further part
//   parts.combine(args, first row, stream, last);                 // to args.out and args.lse
//
// The parts of a row are disjoint and cover all of its tokens. They are combined in the order of
// these calls, in float32, so no bit of a result depends on when a part became available. The last
// part of a row stays separate until combine(), which combines it with the sum in one pass: the
// sums of thousands of rows do not fit caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/backend.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/combine_attention.h"

namespace nvllm::kvcache {

// Not thread-safe; uses one stream. All work is only enqueued, and may be captured.
class PartialAttention {
 public:
  struct Limits {
    std::int64_t rows = 0;   // per step
    std::int64_t heads = 0;  // this rank's query heads
    std::int64_t head_dim = 0;
  };

  // Allocates bytes(limits). Ledger: "kv partials" (device).
  PartialAttention(Backend& backend, const Limits& limits);
  static std::size_t bytes(const Limits& limits);

  // Both set `args.out` and `args.lse`.
  void compute_first_part(kernels::Attention args, Stream& stream);
  // `args`: for rows [first_row, first_row + args.q.shape[0]) of the step.
  void compute_part(kernels::Attention args, std::int64_t first_row, Stream& stream);
  // `args`: for the rows to finish, [first_row, first_row + args.q.shape[0]). last: an additional
  // part of the step's first rows that was computed elsewhere; optional.
  void combine(const kernels::Attention& args, std::int64_t first_row, Stream& stream,
               const kernels::CombineAttention::Part& last = {});

 private:
  // Accumulators and one partial, for `rows` rows.
  struct Sums {
    TensorView sum, sum_lse, part, part_lse;
  };
  Sums sums() const;
  // Rows [first, end) of the step.
  struct Range {
    std::int64_t first = 0, end = 0;
  };
  void sum_up(const Range& rows, Stream& stream);

  const Limits limits_;
  Buffer memory_;
  // Since compute_first_part(): the step's rows, and the disjoint ranges of those that have a
  // separate part in addition to their sum.
  std::int64_t rows_ = 0;
  std::vector<Range> beside_;
};

}  // namespace nvllm::kvcache
