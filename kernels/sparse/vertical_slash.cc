#include "kernels/sparse/vertical_slash.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kChoose("vertical_slash");
constexpr Arguments kList("vertical_slash_index");

constexpr std::int64_t padded(std::int64_t tokens) {
  return (tokens + kEstimationRows - 1) / kEstimationRows * kEstimationRows;
}

void check_lists(const Arguments& check, const TensorView& tensor, const char* name,
                 std::int64_t heads) {
  const std::int64_t count = tensor.rank == 2 ? tensor.shape[1] : 0;
  check.require_dense(tensor, name, DType::i32, {heads, count});
}

}  // namespace

VerticalSlashBudget vertical_slash_budget(std::int64_t tokens) {
  constexpr std::int64_t kEnoughVerticals = 1000, kEnoughSlashes = 6096;
  const std::int64_t budget = tokens * 3 / 10;
  VerticalSlashBudget lines;
  lines.verticals =
      std::min(std::max<std::int64_t>(kFirstVerticals + 1, budget / 5), kEnoughVerticals);
  lines.slashes =
      std::min(std::max<std::int64_t>(kFirstSlashes + 1, budget * 4 / 5), kEnoughSlashes);
  return {std::min(lines.verticals, tokens), std::min(lines.slashes, tokens)};
}

std::int64_t VerticalSlash::estimation_rows() const {
  return std::min(kEstimationRows, prompt.rows());
}

// In float32: v and s of every token, s in two halves that are added up, and the estimation rows'
// log-sum-exps.
std::size_t vertical_slash_workspace(std::int64_t heads, std::int64_t tokens) {
  return static_cast<std::size_t>(heads *
                                  (4 * (padded(tokens) + kEstimationRows) + kEstimationRows)) *
         sizeof(float);
}

void check_vertical_slash(const VerticalSlash& args) {
  check_prompt_rows(args.prompt, kChoose);
  const std::int64_t heads = args.prompt.heads(), tokens = args.prompt.tokens();
  check_lists(kChoose, args.columns, "columns", heads);
  check_lists(kChoose, args.offsets, "offsets", heads);
  const auto fits = [&](const TensorView& list) {
    return list.shape[1] >= 1 && list.shape[1] <= tokens;
  };
  if (tokens > 0 && !(fits(args.columns) && fits(args.offsets))) {
    fail("vertical_slash: columns is ", args.columns.describe(), " and offsets ",
         args.offsets.describe(), "; of ", tokens, " tokens 1 to ", tokens, " can be chosen");
  }
  const std::size_t needed = vertical_slash_workspace(heads, tokens);
  if (args.workspace.bytes() < needed || !args.workspace.aligned(sizeof(float))) {
    fail("vertical_slash: workspace is ", args.workspace.describe(), "; it must be ", needed,
         " bytes for float32");
  }
}

void vertical_slash(const VerticalSlash& args, Stream& stream) {
  check_vertical_slash(args);
  if (args.prompt.q.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, vertical_slash(args, stream));
}

std::int64_t max_slash_ranges(std::int64_t tokens, std::int64_t slashes) {
  return std::min(tokens / kSlashRows + 1, slashes);
}

void slash_bands(TensorView bands, TensorView offsets, Stream& stream) {
  constexpr Arguments check("slash_bands");
  const std::int64_t heads = offsets.shape[0];
  check_lists(check, offsets, "offsets", heads);
  check.require_dense(bands, "bands", DType::i32, {heads, offsets.shape[1] + 1, 2});
  if (heads == 0) return;
  NVLLM_ON_BACKEND(stream, slash_bands(bands, offsets, stream));
}

void check_vertical_slash_index(const VerticalSlashIndex& args) {
  const std::int64_t heads = args.heads();
  check_lists(kList, args.columns, "columns", heads);
  check_lists(kList, args.offsets, "offsets", heads);
  const std::int64_t slashes = args.offsets.shape[1], verticals = args.columns.shape[1];
  kList.require_dense(args.bands, "bands", DType::i32, {heads, slashes + 1, 2});
  if (args.first_position < 0 || args.rows < 0) {
    fail("vertical_slash_index: rows are ", args.rows, " from ", args.first_position,
         "; both must be at least 0");
  }
  const std::int64_t capacity = args.ranges.rank == 4 ? args.ranges.shape[2] : 0;
  kList.require_dense(args.ranges, "ranges", DType::i32, {args.blocks(), heads, capacity, 2});
  kList.require_dense(args.range_counts, "range_counts", DType::i32, {args.blocks(), heads});
  kList.require_dense(args.singles, "singles", DType::i32, {args.blocks(), heads, verticals});
  kList.require_dense(args.single_counts, "single_counts", DType::i32, {args.blocks(), heads});
  const std::int64_t max_ranges = max_slash_ranges(args.first_position + args.rows, slashes);
  if (capacity < max_ranges) {
    fail("vertical_slash_index: ranges is ", args.ranges.describe(), ", but a block may have ",
         max_ranges);
  }
}

void vertical_slash_index(const VerticalSlashIndex& args, Stream& stream) {
  check_vertical_slash_index(args);
  if (args.rows == 0 || args.heads() == 0) return;
  NVLLM_ON_BACKEND(stream, vertical_slash_index(args, stream));
}

}  // namespace nvllm::kernels
