// SegmentSum: a sum over ranks whose bits do not depend on how many ranks there are.
//
// The summed dimension is cut into segments, equally many for every number of ranks (segments_of()
// in partition.h), and each rank owns a contiguous range of them. Summands are float32 and are
// added in the order of one binary tree over all segments with aligned nodes: ((0 + 1) + (2 + 3)) +
// ((4 + 5) + (6 + 7)) for eight segments. A rank sums the largest nodes that it owns, all ranks
// gather these, and each sums the rest of the tree, rounding once. If the number of segments is not
// a power of two, the missing ones are left out.
//
// Ranks exchange few nodes: with eight segments one each on 2, 4 or 8 ranks, and up to two on 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/pointwise/tree_sum.h"
#include "layers/context.h"
#include "layers/partition.h"

namespace nvllm::layers {

// The largest nodes of the tree over `segments` segments that lie within `own`, in order.
std::vector<Range> tree_nodes_of(Range own, std::int64_t segments);

// The order in which the tree adds these adjacent nodes, which together form a node. Sources are
// blocks 0, 1, ... unless stated otherwise; `out`, `sources` and `bias` are not set.
kernels::TreeSum tree_sum_of(const std::vector<Range>& nodes, std::int64_t segments);

class SegmentSum {
 public:
  // Has no segments: unused.
  SegmentSum() = default;
  SegmentSum(std::int64_t segments, Shard shard);

  std::int64_t segments() const { return segments_; }
  Range own() const { return own_; }  // this rank's

  // Enqueues the sum of some rows over the segments of one node of the tree that this rank owns.
  // sum.out, [rows.size(), columns], receives the sum; block n of sum.sources is memory for the
  // summand of segment segments.begin + n, float32, dense.
  using Node = std::function<void(const kernels::TreeSum& sum, Range segments, Range rows)>;

  // out = the sum over all segments of all ranks [+ bias], the same on all ranks. out: [rows,
  // columns], dense; bias: [columns], or data == nullptr. Processes kRowsAtOnce rows at a time.
  void run(TensorView out, TensorView bias, const Node& node, const Context& context) const;

  // Bytes of Context::scratch that run() takes.
  std::size_t scratch_bytes(std::int64_t rows, std::int64_t columns) const;

 private:
  static constexpr std::int64_t kRowsAtOnce = 256;

  void run_rows(TensorView out, TensorView bias, Range rows, const Node& node,
                const Context& context) const;

  std::int64_t segments_ = 0;
  Shard shard_;
  Range own_;
  std::vector<Range> own_nodes_;
  std::int64_t max_nodes_ = 0;  // of the rank with the most nodes
  kernels::TreeSum all_{};      // over all ranks' nodes, max_nodes_ blocks per rank
};

}  // namespace nvllm::layers
