#include "base/divide.h"
#include "kernels/sparse/vertical_slash.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/prompt_segments.h"

namespace nvllm::kvcache {
namespace {

// What is chosen once for a call, and what its segments need.
struct Sizes {
  std::int64_t rows;  // of a segment
  std::size_t columns, offsets, bands, workspace;
  std::size_t counts, ranges, singles;

  Sizes(const PromptLimits& limits, float budget) {
    constexpr std::size_t kInt = sizeof(std::int32_t);
    const kernels::VerticalSlashBudget lines = MInference::lines(limits.tokens, budget);
    const std::int64_t most = kernels::max_slash_ranges(limits.tokens, lines.slashes);
    const std::int64_t list_bytes = limits.heads * (2 * most + lines.verticals) * 4;
    rows = segment_rows(limits.rows, list_bytes / kernels::kSlashRows);
    const auto heads = static_cast<std::size_t>(limits.heads);
    columns = heads * static_cast<std::size_t>(lines.verticals) * kInt;
    offsets = heads * static_cast<std::size_t>(lines.slashes) * kInt;
    bands = heads * static_cast<std::size_t>(lines.slashes + 1) * 2 * kInt;
    workspace = kernels::vertical_slash_workspace(limits.heads, limits.tokens);
    const auto blocks = static_cast<std::size_t>(divide_up(rows, kernels::kSlashRows));
    counts = blocks * heads * kInt;
    ranges = counts * static_cast<std::size_t>(most) * 2;
    singles = counts * static_cast<std::size_t>(lines.verticals);
  }
  std::size_t bytes() const {
    return columns + offsets + bands + workspace + 2 * counts + ranges + singles +
           8 * Arena::kAlignment;
  }
};

class MInferencePolicy final : public PromptPolicy {
 public:
  MInferencePolicy(Backend& backend, const PromptLimits& limits, float budget)
      : sizes_(limits, budget),
        budget_(budget),
        arena_(backend.allocate(MemoryKind::device, sizes_.bytes(), "minference")),
        columns_(arena_.allocate(sizes_.columns, "columns")),
        offsets_(arena_.allocate(sizes_.offsets, "offsets")),
        bands_(arena_.allocate(sizes_.bands, "bands")),
        workspace_(arena_.allocate(sizes_.workspace, "sums")),
        range_counts_(arena_.allocate(sizes_.counts, "counts of ranges")),
        ranges_(arena_.allocate(sizes_.ranges, "ranges")),
        single_counts_(arena_.allocate(sizes_.counts, "counts of columns")),
        singles_(arena_.allocate(sizes_.singles, "columns outside ranges")) {}

  const char* name() const override { return "minference"; }

  void attend(const PromptAttention& args, Stream& stream) override {
    const std::int64_t heads = args.rows.heads(), rows = args.rows.rows();
    const kernels::VerticalSlashBudget lines = MInference::lines(args.rows.tokens(), budget_);
    kernels::VerticalSlash choice;
    choice.prompt = args.rows;
    choice.columns = TensorView(columns_, DType::i32, {heads, lines.verticals});
    choice.offsets = TensorView(offsets_, DType::i32, {heads, lines.slashes});
    choice.workspace =
        TensorView(workspace_, DType::u8, {static_cast<std::int64_t>(sizes_.workspace)});
    kernels::vertical_slash(choice, stream);

    kernels::VerticalSlashIndex lists;
    lists.columns = choice.columns;
    lists.offsets = choice.offsets;
    lists.bands = TensorView(bands_, DType::i32, {heads, lines.slashes + 1, 2});
    kernels::slash_bands(lists.bands, lists.offsets, stream);
    for (std::int64_t first = 0; first < rows; first += sizes_.rows) {
      const std::int64_t count = std::min(sizes_.rows, rows - first);
      attend_segment(lists, segment_of(args.rows, first, count), args.out.rows(first, count),
                     stream);
    }
  }

 private:
  void attend_segment(kernels::VerticalSlashIndex lists, const kernels::PromptRows& rows,
                      const TensorView& out, Stream& stream) {
    lists.first_position = rows.first_position;
    lists.rows = rows.rows();
    const std::int64_t heads = rows.heads(), blocks = lists.blocks();
    const std::int64_t verticals = lists.columns.shape[1];
    const std::int64_t most = kernels::max_slash_ranges(rows.tokens(), lists.offsets.shape[1]);
    lists.ranges = TensorView(ranges_, DType::i32, {blocks, heads, most, 2});
    lists.range_counts = TensorView(range_counts_, DType::i32, {blocks, heads});
    lists.singles = TensorView(singles_, DType::i32, {blocks, heads, verticals});
    lists.single_counts = TensorView(single_counts_, DType::i32, {blocks, heads});
    kernels::vertical_slash_index(lists, stream);

    kernels::SparseAttention attention = sparse_of(rows, out);
    attention.ranges = lists.ranges;
    attention.range_counts = lists.range_counts;
    attention.columns = lists.singles;
    attention.column_counts = lists.single_counts;
    kernels::sparse_attention(attention, stream);
  }

  Sizes sizes_;
  float budget_;
  Arena arena_;
  void *columns_, *offsets_, *bands_, *workspace_;
  void *range_counts_, *ranges_, *single_counts_, *singles_;
};

}  // namespace

kernels::VerticalSlashBudget MInference::lines(std::int64_t tokens, float budget) {
  const kernels::VerticalSlashBudget published = kernels::vertical_slash_budget(tokens);
  const auto times = [&](std::int64_t lines, std::int64_t always) {
    const double wanted =
        std::min(static_cast<double>(lines) * budget, static_cast<double>(tokens));
    return std::min(std::max(static_cast<std::int64_t>(wanted), always + 1), tokens);
  };
  return {times(published.verticals, kernels::kFirstVerticals),
          times(published.slashes, kernels::kFirstSlashes)};
}

std::size_t MInference::bytes(const PromptLimits& limits, float budget) {
  return Sizes(limits, budget).bytes();
}

std::unique_ptr<PromptPolicy> MInference::create(Backend& backend, const PromptLimits& limits,
                                                 float budget) {
  return std::make_unique<MInferencePolicy>(backend, limits, budget);
}

}  // namespace nvllm::kvcache
