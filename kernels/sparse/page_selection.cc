#include "kernels/sparse/page_selection.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/selection.h"

namespace nvllm::kernels {
namespace {

constexpr Arguments kBound("update_page_bounds");
constexpr Arguments kSelect("page_selection");

void check_bounds(const Arguments& check, const TensorView& bounds, DType dtype,
                  std::int64_t kv_heads, std::int64_t head_dim) {
  const std::int64_t pages = bounds.rank == 4 ? bounds.shape[0] : 0;
  check.require_dense(bounds, "bounds", dtype, {pages, kv_heads, 2, head_dim});
  constexpr std::size_t kAlignment = 16;
  if (!bounds.aligned(kAlignment) || head_dim % 8 != 0 || head_dim > kMaxHeadDim) {
    fail(check.operation(), ": bounds is ", bounds.describe(), " at ", bounds.data,
         "; it must start at a multiple of 16 bytes, and head_dim be a multiple of 8 up to ",
         kMaxHeadDim);
  }
}

// A single block that is a whole sequence may end within a page.
void check_page(const Arguments& check, std::int64_t page_tokens, std::int64_t block_size,
                bool whole) {
  if (page_tokens < 1 || (!whole && block_size % page_tokens != 0)) {
    fail(check.operation(), ": page_tokens is ", page_tokens, "; it must divide the block size, ",
         block_size);
  }
}

}  // namespace

void check_update_page_bounds(const UpdatePageBounds& args) {
  check_kv_view(args.kv, kBound.operation());
  check_page(kBound, args.page_tokens, args.kv.block_size(),
             args.kv.block_table.data == nullptr && args.kv.blocks() == 1);
  check_bounds(kBound, args.bounds, args.kv.keys.dtype, args.kv.kv_heads(), args.kv.head_dim());
  const std::int64_t sequences = args.kv_length.rank == 1 ? args.kv_length.shape[0] : 0;
  kBound.require_dense(args.kv_length, "kv_length", DType::i32, {sequences});
  kBound.require_dense(args.query_start, "query_start", DType::i32, {sequences + 1});
  if (args.block_map.data == nullptr) return;
  kBound.require_dense(args.block_map, "block_map", DType::i32, {args.block_map.shape[0]});
}

void update_page_bounds(const UpdatePageBounds& args, Stream& stream) {
  check_update_page_bounds(args);
  if (args.kv_length.shape[0] == 0 || args.max_query_rows == 0 || args.kv.kv_heads() == 0) return;
  NVLLM_ON_BACKEND(stream, update_page_bounds(args, stream));
}

std::size_t page_selection_workspace(std::int64_t sequences, std::int64_t kv_heads,
                                     std::int64_t max_kv_length, std::int64_t page_tokens) {
  const std::int64_t pages = (max_kv_length + page_tokens - 1) / page_tokens;
  return static_cast<std::size_t>(sequences * kv_heads * pages) * sizeof(float);
}

void check_page_selection(const PageSelection& args) {
  kSelect.require_floats(args.q, "q", 3, "[sequences, heads, head_dim]");
  const std::int64_t sequences = args.q.shape[0], heads = args.q.shape[1];
  const std::int64_t kv_heads = args.bounds.rank == 4 ? args.bounds.shape[1] : 0;
  const DType of_keys = args.bounds.dtype == DType::u8 ? DType::u8 : args.q.dtype;
  check_bounds(kSelect, args.bounds, of_keys, kv_heads, args.q.shape[2]);
  check_page(kSelect, args.page_tokens, args.block_size,
             args.block_table.data == nullptr && sequences == 1);
  TensorView row = args.q;
  row.shape[0] = std::min<std::int64_t>(1, sequences);
  kSelect.require_dense(row, "a row of q");
  if (args.group < 1 || args.first_head < 0 || args.first_head >= args.group ||
      (heads > 0 && (args.first_head + heads - 1) / args.group >= kv_heads)) {
    fail("page_selection: q is ", args.q.describe(), ", bounds are ", args.bounds.describe(),
         "; that does not fit groups of ", args.group, " from head ", args.first_head);
  }
  if (args.budget < 2)
    fail("page_selection: budget is ", args.budget, "; it must be at least 2 pages");
  kSelect.require_dense(args.kv_length, "kv_length", DType::i32, {sequences});
  if (args.block_table.data != nullptr) {
    const std::int64_t blocks = args.block_table.rank == 2 ? args.block_table.shape[1] : 0;
    kSelect.require_dense(args.block_table, "block_table", DType::i32, {sequences, blocks});
  }
  kSelect.require_dense(args.pages, "pages", DType::i32, {sequences, kv_heads, args.budget});
  kSelect.require_dense(args.page_counts, "page_counts", DType::i32, {sequences, kv_heads});
  const std::size_t needed =
      page_selection_workspace(sequences, kv_heads, args.max_kv_length, args.page_tokens);
  if (args.workspace.bytes() < needed || !args.workspace.aligned(sizeof(float))) {
    fail("page_selection: workspace is ", args.workspace.describe(), "; it must be ", needed,
         " bytes for float32");
  }
}

void page_selection(const PageSelection& args, Stream& stream) {
  check_page_selection(args);
  if (args.page_counts.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, page_selection(args, stream));
}

}  // namespace nvllm::kernels
