#include "kvcache/chunked/partial_attention.h"

#include <algorithm>
#include <initializer_list>

#include "base/check.h"

namespace nvllm::kvcache {
namespace {

std::size_t floats(std::int64_t count) {
  return Arena::rounded(static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

PartialAttention::PartialAttention(Backend& backend, const Limits& limits)
    : limits_(limits),
      memory_(backend.allocate(MemoryKind::device, bytes(limits), "kv partials")) {}

std::size_t PartialAttention::bytes(const Limits& limits) {
  const std::int64_t heads = limits.rows * limits.heads;
  return 2 * (floats(heads * limits.head_dim) + floats(heads));
}

PartialAttention::Sums PartialAttention::sums() const {
  auto* data = static_cast<unsigned char*>(memory_.data());
  const auto next = [&](std::int64_t max_floats, std::initializer_list<std::int64_t> shape) {
    const TensorView tensor(data, DType::f32, shape);
    data += floats(max_floats);
    return tensor;
  };
  const std::int64_t heads = limits_.heads, max_heads = limits_.rows * heads;
  Sums all;
  all.sum = next(max_heads * limits_.head_dim, {rows_, heads, limits_.head_dim});
  all.sum_lse = next(max_heads, {rows_, heads});
  all.part = next(max_heads * limits_.head_dim, {rows_, heads, limits_.head_dim});
  all.part_lse = next(max_heads, {rows_, heads});
  return all;
}

void PartialAttention::compute_first_part(kernels::Attention args, Stream& stream) {
  rows_ = args.q.shape[0];
  beside_.clear();
  NVLLM_CHECK(rows_ <= limits_.rows, rows_, " rows of ", limits_.rows);
  const Sums all = sums();
  args.out = all.sum;
  args.lse = all.sum_lse;
  kernels::attention(args, stream);
}

void PartialAttention::compute_part(kernels::Attention args, std::int64_t first_row,
                                    Stream& stream) {
  const std::int64_t rows = args.q.shape[0], end = first_row + rows;
  std::erase_if(beside_, [&](const Range& range) {
    const bool there = range.first < end && first_row < range.end;
    if (there) sum_up(range, stream);
    return there;
  });
  const Sums all = sums();
  args.sinks = {};  // the first part has them
  args.out = all.part.rows(first_row, rows);
  args.lse = all.part_lse.rows(first_row, rows);
  kernels::attention(args, stream);
  if (!beside_.empty() && beside_.back().end == first_row) {
    beside_.back().end = end;
  } else {
    beside_.push_back({first_row, end});
  }
}

void PartialAttention::sum_up(const Range& rows, Stream& stream) {
  const Sums all = sums();
  const std::int64_t count = rows.end - rows.first;
  kernels::CombineAttention call;
  call.out = all.sum.rows(rows.first, count);
  call.lse = all.sum_lse.rows(rows.first, count);
  call.parts[0] = {call.out, call.lse};
  call.parts[1] = {all.part.rows(rows.first, count), all.part_lse.rows(rows.first, count)};
  call.count = 2;
  kernels::combine_attention(call, stream);
}

// Runs one combine per range of rows with the same parts.
void PartialAttention::combine(const kernels::Attention& args, std::int64_t first_row,
                               Stream& stream, const kernels::CombineAttention::Part& last) {
  const Sums all = sums();
  const std::int64_t last_end = last.out.data == nullptr ? 0 : last.out.shape[0];
  const std::int64_t end = first_row + args.q.shape[0];
  std::int64_t next = 0;
  for (std::int64_t row = first_row; row < end; row = next) {
    bool beside = false;
    next = row < last_end ? std::min(end, last_end) : end;
    for (const Range& range : beside_) {
      beside |= range.first <= row && row < range.end;
      for (const std::int64_t edge : {range.first, range.end}) {
        if (row < edge) next = std::min(next, edge);
      }
    }
    const std::int64_t rows = next - row;
    kernels::CombineAttention call;
    const auto add = [&](const TensorView& out, const TensorView& lse) {
      call.parts[static_cast<std::size_t>(call.count++)] = {out.rows(row, rows),
                                                            lse.rows(row, rows)};
    };
    call.out = args.out.rows(row - first_row, rows);
    if (args.lse.data != nullptr) call.lse = args.lse.rows(row - first_row, rows);
    add(all.sum, all.sum_lse);
    if (beside) add(all.part, all.part_lse);
    if (row < last_end) add(last.out, last.lse);
    kernels::combine_attention(call, stream);
  }
}

}  // namespace nvllm::kvcache
