// SegmentSum: a sum over ranks whose bits do not depend on how many ranks there are.
//
// What is summed is cut into segments, as many with every number of ranks (segments_of() in
// partition.h), and each rank owns some neighbouring ones. Their summands are float32, and are
// added up in the order of one binary tree over all segments, whose nodes are aligned: of eight
// segments ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A rank adds up the largest nodes that are its
// own, all ranks gather these, and each adds up the rest of the tree, rounding once. Where the
// number of segments is no power of two, what would lie beyond the last one is left out.
//
// Ranks exchange few nodes: one each of 2, 4 or 8 ranks with eight segments, and up to two of 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/pointwise/tree_sum.h"
#include "layers/context.h"
#include "layers/partition.h"

namespace nvllm::layers {

// The largest nodes of the tree over so many segments that lie within a range, in order.
std::vector<Range> tree_nodes_of(Range own, std::int64_t segments);

// The order in which these nodes, neighbours in order, are added up: that of the tree. They make up
// a node. The sources are blocks 0, 1, ..., where nothing else is said; `out`, `sources` and `bias`
// are not set.
kernels::TreeSum tree_sum_of(const std::vector<Range>& nodes, std::int64_t segments);

class SegmentSum {
 public:
  // Of no segments: not used.
  SegmentSum() = default;
  SegmentSum(std::int64_t segments, Shard shard);

  std::int64_t segments() const { return segments_; }
  Range own() const { return own_; }  // this rank's

  // Enqueues the sum over some own segments, a node of the tree, of some of the rows: sum.out is
  // where it goes, [rows.size(), columns], and block n of sum.sources memory for the summand of
  // segment segments.begin + n, float32, dense.
  using Node = std::function<void(const kernels::TreeSum& sum, Range segments, Range rows)>;

  // out = the sum over all segments of all ranks [+ bias], the same on all ranks. out: [rows,
  // columns], dense; bias: [columns], or data == nullptr. Takes the rows some at a time.
  void run(TensorView out, TensorView bias, const Node& node, const Context& context) const;

  // Of Context::scratch.
  std::size_t scratch_bytes(std::int64_t rows, std::int64_t columns) const;

 private:
  static constexpr std::int64_t kRowsAtOnce = 256;

  void run_rows(TensorView out, TensorView bias, Range rows, const Node& node,
                const Context& context) const;

  std::int64_t segments_ = 0;
  Shard shard_;
  Range own_;
  std::vector<Range> own_nodes_;
  std::int64_t max_nodes_ = 0;  // of the rank that has the most
  kernels::TreeSum all_{};      // of all ranks' nodes, which lie max_nodes_ blocks to a rank
};

}  // namespace nvllm::layers
