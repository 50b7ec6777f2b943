#include "kvcache/partial_sums.h"

#include <algorithm>
#include <initializer_list>

#include "base/check.h"

namespace nvllm::kvcache {
namespace {

std::size_t floats(std::int64_t count) {
  return Arena::rounded(static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

PartialSums::PartialSums(Backend& backend, const Limits& limits)
    : limits_(limits),
      memory_(backend.allocate(MemoryKind::device, bytes(limits), "kv partials")) {}

std::size_t PartialSums::bytes(const Limits& limits) {
  const std::int64_t heads = limits.rows * limits.heads;
  return 2 * (floats(heads * limits.head_dim) + floats(heads));
}

PartialSums::Sums PartialSums::sums() const {
  auto* data = static_cast<unsigned char*>(memory_.data());
  const auto next = [&](std::int64_t most, std::initializer_list<std::int64_t> shape) {
    const TensorView tensor(data, DType::f32, shape);
    data += floats(most);
    return tensor;
  };
  const std::int64_t heads = limits_.heads, most = limits_.rows * heads;
  Sums all;
  all.sum = next(most * limits_.head_dim, {rows_, heads, limits_.head_dim});
  all.sum_lse = next(most, {rows_, heads});
  all.part = next(most * limits_.head_dim, {rows_, heads, limits_.head_dim});
  all.part_lse = next(most, {rows_, heads});
  return all;
}

void PartialSums::begin(kernels::Attention args, Stream& stream) {
  rows_ = args.q.shape[0];
  NVLLM_CHECK(rows_ <= limits_.rows, rows_, " rows of ", limits_.rows);
  const Sums all = sums();
  args.out = all.sum;
  args.lse = all.sum_lse;
  kernels::attention(args, stream);
}

void PartialSums::add(kernels::Attention args, std::int64_t first_row, Stream& stream) {
  const Sums all = sums();
  const std::int64_t rows = args.q.shape[0];
  args.out = all.part.rows(first_row, rows);
  args.lse = all.part_lse.rows(first_row, rows);
  kernels::attention(args, stream);

  kernels::MergeAttention merge;
  merge.out = all.sum.rows(first_row, rows);
  merge.lse = all.sum_lse.rows(first_row, rows);
  merge.parts[0] = {merge.out, merge.lse};
  merge.parts[1] = {args.out, args.lse};
  merge.count = 2;
  kernels::merge_attention(merge, stream);
}

void PartialSums::finish(const kernels::Attention& args, std::int64_t first_row, Stream& stream,
                         const kernels::MergeAttention::Part& last) {
  const Sums all = sums();
  const auto merge = [&](std::int64_t first, std::int64_t rows, bool with_last) {
    if (rows == 0) return;
    const std::int64_t row = first_row + first;
    kernels::MergeAttention result;
    result.out = args.out.rows(first, rows);
    if (args.lse.data != nullptr) result.lse = args.lse.rows(first, rows);
    result.parts[0] = {all.sum.rows(row, rows), all.sum_lse.rows(row, rows)};
    result.count = 1;
    if (with_last)
      result.parts[result.count++] = {last.out.rows(row, rows), last.lse.rows(row, rows)};
    kernels::merge_attention(result, stream);
  };
  const std::int64_t rows = args.q.shape[0];
  const std::int64_t last_rows = last.out.data == nullptr ? 0 : last.out.shape[0];
  const std::int64_t both = std::clamp(last_rows - first_row, std::int64_t{0}, rows);
  merge(0, both, true);
  merge(both, rows - both, false);
}

}  // namespace nvllm::kvcache
