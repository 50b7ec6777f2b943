#include "layers/segment_sum.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace nvllm::layers {
namespace {

// A node of the tree: `size` segments, a power of two, of which only those below `segments` exist.
struct Block {
  std::int64_t begin, size, segments;

  static Block root(std::int64_t segments) {
    const auto size = std::bit_ceil(static_cast<std::uint64_t>(segments));
    return {0, static_cast<std::int64_t>(size), segments};
  }
  Block half(int second) const { return {begin + second * (size / 2), size / 2, segments}; }
  Range range() const { return {begin, std::min(begin + size, segments)}; }
  bool exists() const { return begin < segments; }
};

void add_nodes(const Block& block, Range own, std::vector<Range>& nodes) {
  const Range range = block.range();
  if (!block.exists() || range.end <= own.begin || own.end <= range.begin) return;
  if (own.begin <= range.begin && range.end <= own.end) return nodes.push_back(range);
  for (const int half : {0, 1}) add_nodes(block.half(half), own, nodes);
}

// Pushes the block's sources in order, and a merge where both halves have sources. Returns whether
// any were pushed.
bool push_sources(const Block& block, const std::vector<Range>& nodes, kernels::TreeSum& sum) {
  if (!block.exists() || sum.count == static_cast<int>(nodes.size())) return false;
  if (nodes[static_cast<std::size_t>(sum.count)] == block.range()) {
    ++sum.count;
    return true;
  }
  if (block.size == 1) return false;
  const bool first = push_sources(block.half(0), nodes, sum);
  const bool second = push_sources(block.half(1), nodes, sum);
  if (first && second) ++sum.merges[static_cast<std::size_t>(sum.count - 1)];
  return first || second;
}

}  // namespace

std::vector<Range> tree_nodes_of(Range own, std::int64_t segments) {
  std::vector<Range> nodes;
  if (own.size() > 0) add_nodes(Block::root(segments), own, nodes);
  return nodes;
}

kernels::TreeSum tree_sum_of(const std::vector<Range>& nodes, std::int64_t segments) {
  NVLLM_CHECK_LE(nodes.size(), std::size_t{kernels::TreeSum::kMaxSources});
  kernels::TreeSum sum;
  for (std::size_t i = 0; i < nodes.size(); ++i) sum.blocks[i] = static_cast<std::uint8_t>(i);
  push_sources(Block::root(segments), nodes, sum);
  NVLLM_CHECK_EQ(sum.count, static_cast<int>(nodes.size()));
  return sum;
}

SegmentSum::SegmentSum(std::int64_t segments, Shard shard) : segments_(segments), shard_(shard) {
  NVLLM_CHECK(segments > 0 && segments <= kMaxSegments, segments, " segments");
  shard.tp_invariant = false;  // segments themselves may be cut anywhere
  own_ = even_part_of(segments, shard);
  own_nodes_ = tree_nodes_of(own_, segments);
  std::vector<std::vector<Range>> of_ranks;
  std::vector<Range> nodes;  // the nodes of all ranks
  for (int rank = 0; rank < shard.ranks; ++rank) {
    const Range theirs = even_part_of(segments, {.rank = rank, .ranks = shard.ranks});
    of_ranks.push_back(tree_nodes_of(theirs, segments));
    nodes.insert(nodes.end(), of_ranks.back().begin(), of_ranks.back().end());
    max_nodes_ = std::max(max_nodes_, static_cast<std::int64_t>(of_ranks.back().size()));
  }
  all_ = tree_sum_of(nodes, segments);
  std::size_t source = 0;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (std::size_t i = 0; i < of_ranks[rank].size(); ++i) {
      const std::size_t block = rank * static_cast<std::size_t>(max_nodes_) + i;
      all_.blocks.at(source++) = static_cast<std::uint8_t>(block);
    }
  }
}

void SegmentSum::run(TensorView out, TensorView bias, const Node& node,
                     const Context& context) const {
  NVLLM_CHECK_EQ(context.ranks(), shard_.ranks);
  const std::int64_t rows = out.shape[0];
  for (std::int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const Range some{first, std::min(first + kRowsAtOnce, rows)};
    run_rows(out.rows(first, some.size()), bias, some, node, context);
  }
}

void SegmentSum::run_rows(TensorView out, TensorView bias, Range rows, const Node& node,
                          const Context& context) const {
  const Scratch::Frame frame(context.scratch);
  const std::int64_t count = rows.size(), columns = out.shape[1];
  const TensorView leaves = context.scratch.allocate(DType::f32, own_.size() * count, columns);
  const auto add_node = [&](Range own, TensorView to, TensorView with_bias) {
    std::vector<Range> segments;
    for (std::int64_t n = own.begin; n < own.end; ++n) segments.push_back({n, n + 1});
    kernels::TreeSum sum = tree_sum_of(segments, segments_);
    sum.out = to;
    sum.sources = leaves.rows((own.begin - own_.begin) * count, own.size() * count);
    sum.bias = with_bias;
    node(sum, own, rows);
  };
  if (context.alone()) return add_node(own_, out, bias);
  const TensorView gathered =
      context.scratch.allocate(DType::f32, shard_.ranks * max_nodes_ * count, columns);
  const TensorView own = gathered.rows(shard_.rank * max_nodes_ * count, max_nodes_ * count);
  for (std::size_t i = 0; i < own_nodes_.size(); ++i) {
    add_node(own_nodes_[i], own.rows(static_cast<std::int64_t>(i) * count, count), {});
  }
  context.communicator->all_gather(gathered, own, context.stream);
  kernels::TreeSum sum = all_;
  sum.out = out;
  sum.sources = gathered;
  sum.bias = bias;
  kernels::tree_sum(sum, context.stream);
}

std::size_t SegmentSum::scratch_bytes(std::int64_t rows, std::int64_t columns) const {
  const std::int64_t count = std::min(rows, kRowsAtOnce);
  const std::size_t gathered =
      shard_.ranks == 1 ? 0
                        : Scratch::bytes_of(DType::f32, shard_.ranks * max_nodes_ * count, columns);
  return segments_ == 0 ? 0
                        : Scratch::bytes_of(DType::f32, own_.size() * count, columns) + gathered;
}

}  // namespace nvllm::layers
