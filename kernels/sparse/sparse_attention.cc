#include "kernels/sparse/sparse_attention.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/sparse/backends.h"

namespace nvllm::kernels {
namespace {

// Checks the lists of every row block and head, [..][capacity] or [..][capacity, 2], and their
// lengths.
void check_lists(const SparseAttention& args, const TensorView& counts, const char* counts_name,
                 const TensorView& lists, const char* name, int rank) {
  constexpr Arguments check("sparse_attention");
  const std::int64_t blocks = args.row_blocks(), heads = args.q.shape[1];
  check.require_dense(counts, counts_name, DType::i32, {blocks, heads});
  if (lists.rank != rank) {
    fail("sparse_attention: ", name, " is ", lists.describe(), "; it must have ", rank,
         " dimensions");
  }
  if (rank == 3) check.require_dense(lists, name, DType::i32, {blocks, heads, lists.shape[2]});
  if (rank == 4) check.require_dense(lists, name, DType::i32, {blocks, heads, lists.shape[2], 2});
}

}  // namespace

Attention SparseAttention::attention_args() const {
  return {.out = out,
          .q = q,
          .kv = kv,
          .kv_scales = kv_scales,
          .lse = lse,
          .group = group,
          .first_head = first_head,
          .scale = scale};
}

void SparseAttention::find_tokens(std::int64_t begin, std::int64_t end, std::int64_t head,
                                  std::vector<std::int32_t>& tokens) const {
  tokens.clear();
  const std::int64_t token_end = first_position + end;
  const auto add = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t t = from; t < std::min(to, token_end); ++t) {
      tokens.push_back(static_cast<std::int32_t>(t));
    }
  };
  const std::int64_t list = begin / kSparseTile * q.shape[1] + head;
  if (by_tiles()) {
    const auto* tile = tiles.as<std::int32_t>() + list * tiles.shape[2];
    for (int i = 0; i < tile_counts.as<std::int32_t>()[list]; ++i) {
      add(tile[i] * kSparseTile, (tile[i] + 1) * kSparseTile);
    }
    return;
  }
  const auto* range = ranges.as<std::int32_t>() + list * ranges.shape[2] * 2;
  const auto* column = columns.as<std::int32_t>() + list * columns.shape[2];
  const auto* end_column = column + column_counts.as<std::int32_t>()[list];
  for (int i = 0; i < range_counts.as<std::int32_t>()[list]; ++i) {
    for (; column != end_column && *column < range[2 * i]; ++column) add(*column, *column + 1);
    add(range[2 * i], range[2 * i + 1]);
  }
  for (; column != end_column; ++column) add(*column, *column + 1);
}

void check_sparse_attention(const SparseAttention& args) {
  check_attention_rows(args.attention_args(), "sparse_attention");
  if (args.first_position < 0) {
    fail("sparse_attention: first_position is ", args.first_position, "; it must not be negative");
  }
  const TensorView& table = args.kv.block_table;
  if (table.data != nullptr && table.shape[0] < 1) {
    fail("sparse_attention: block_table is ", table.describe(), "; it must be of one sequence");
  }
  const std::int64_t blocks = table.data != nullptr ? table.shape[1] : 1;
  const std::int64_t tokens = args.first_position + args.q.shape[0];
  if (args.q.elements() > 0 && tokens > blocks * args.kv.block_size()) {
    fail("sparse_attention: first_position is ", args.first_position, ", q is ", args.q.describe(),
         ", but the cache is of ", blocks * args.kv.block_size(), " tokens");
  }
  if (args.by_tiles()) {
    check_lists(args, args.tile_counts, "tile_counts", args.tiles, "tiles", 3);
  } else {
    check_lists(args, args.range_counts, "range_counts", args.ranges, "ranges", 4);
    check_lists(args, args.column_counts, "column_counts", args.columns, "columns", 3);
  }
}

void sparse_attention(const SparseAttention& args, Stream& stream) {
  check_sparse_attention(args);
  if (args.q.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, sparse_attention(args, stream));
}

Attention PageAttention::attention_args() const {
  return {.out = out,
          .q = q,
          .kv = kv,
          .kv_scales = kv_scales,
          .kv_length = kv_length,
          .lse = lse,
          .group = group,
          .first_head = first_head,
          .scale = scale,
          .max_query_rows = 1};
}

void PageAttention::find_tokens(std::int64_t sequence, std::int64_t kv_head,
                                std::vector<std::int32_t>& tokens) const {
  tokens.clear();
  const std::int64_t length = kv_length.as<std::int32_t>()[sequence];
  const std::int64_t list = sequence * kv_heads() + kv_head;
  const auto* numbers = pages.as<std::int32_t>() + list * pages.shape[2];
  for (int i = 0; i < page_counts.as<std::int32_t>()[list]; ++i) {
    const std::int64_t begin = numbers[i] * page_tokens;
    for (std::int64_t t = begin; t < std::min(length, begin + page_tokens); ++t) {
      tokens.push_back(static_cast<std::int32_t>(t));
    }
  }
}

void check_page_attention(const PageAttention& args) {
  constexpr Arguments check("page_attention");
  check_attention_rows(args.attention_args(), "page_attention");
  const std::int64_t sequences = args.q.shape[0], kv_heads = args.kv_heads();
  check.require_dense(args.kv_length, "kv_length", DType::i32, {sequences});
  const TensorView& table = args.kv.block_table;
  const std::int64_t held = table.data != nullptr ? table.shape[0] : args.kv.blocks();
  if (held < sequences) {
    fail("page_attention: q is ", args.q.describe(), ", but the cache is of ", held, " sequences");
  }
  const std::int64_t page = args.page_tokens;
  if (page < 8 || (page & (page - 1)) != 0) {
    fail("page_attention: page_tokens is ", page, "; it must be a power of two, at least 8");
  }
  check.require_dense(args.page_counts, "page_counts", DType::i32, {sequences, kv_heads});
  if (args.pages.rank != 3) {
    fail("page_attention: pages is ", args.pages.describe(), "; it must have 3 dimensions");
  }
  check.require_dense(args.pages, "pages", DType::i32, {sequences, kv_heads, args.pages.shape[2]});
}

void page_attention(const PageAttention& args, Stream& stream) {
  check_page_attention(args);
  if (args.q.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, page_attention(args, stream));
}

}  // namespace nvllm::kernels
