#include "kvcache/policies/quest.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"

namespace nvllm::kvcache {
namespace {

std::int64_t block_pages(const BlockShape& shape) {
  return divide_up(shape.block_size, Quest::kPageTokens);
}

// Of a page in one layer.
std::size_t page_bytes(const BlockShape& shape) {
  return static_cast<std::size_t>(2 * shape.kv_heads * shape.head_dim) * size_of(shape.dtype);
}

struct Sizes {
  std::size_t bounds, pages, counts, workspace;

  explicit Sizes(const QuestLimits& limits) {
    const BlockShape& shape = limits.shape;
    bounds = static_cast<std::size_t>(limits.blocks) * Quest::block_bytes(shape);
    counts = static_cast<std::size_t>(limits.sequences * shape.kv_heads) * sizeof(std::int32_t);
    pages = counts * static_cast<std::size_t>(limits.budget / Quest::kPageTokens);
    workspace = kernels::page_selection_workspace(limits.sequences, shape.kv_heads, limits.tokens,
                                                Quest::kPageTokens);
  }
  std::size_t bytes() const { return bounds + pages + counts + workspace + 4 * Arena::kAlignment; }
};

}  // namespace

std::size_t Quest::block_bytes(const BlockShape& shape) {
  return static_cast<std::size_t>(shape.layers * block_pages(shape)) * page_bytes(shape);
}

std::size_t Quest::bytes(const QuestLimits& limits) {
  return Sizes(limits).bytes();
}

Quest::Quest(Backend& backend, const QuestLimits& limits)
    : limits_(limits), arena_(backend.allocate(MemoryKind::device, bytes(limits), "quest")) {
  const bool whole = limits.blocks == 1;  // one block is a whole sequence: no page crosses its end
  if (!whole && limits.shape.block_size % kPageTokens != 0) {
    fail("quest: blocks have ", limits.shape.block_size,
         " tokens; pass --block-size a multiple of ", kPageTokens);
  }
  const Sizes sizes(limits);
  bounds_ = arena_.allocate(sizes.bounds, "bounds");
  pages_ = arena_.allocate(sizes.pages, "pages");
  counts_ = arena_.allocate(sizes.counts, "counts of pages");
  workspace_ = arena_.allocate(sizes.workspace, "scores");
}

TensorView Quest::bounds(std::int64_t layer) const {
  const BlockShape& shape = limits_.shape;
  const std::int64_t pages = limits_.blocks * block_pages(shape);
  auto* const data = static_cast<unsigned char*>(bounds_) +
                     static_cast<std::size_t>(layer * pages) * page_bytes(shape);
  return TensorView(data, shape.dtype, {pages, shape.kv_heads, 2, shape.head_dim});
}

void Quest::stored(std::int64_t layer, const kernels::Attention& args, Stream& stream,
                   const TensorView& block_map) {
  kernels::UpdatePageBounds call;
  call.kv = args.kv;
  call.query_start = args.query_start;
  call.kv_length = args.kv_length;
  call.block_map = block_map;
  call.bounds = bounds(layer);
  call.page_tokens = kPageTokens;
  call.max_query_rows = args.max_query_rows;
  kernels::update_page_bounds(call, stream);
}

Quest::Choice Quest::choose(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  const std::int64_t sequences = args.kv_length.shape[0], kv_heads = limits_.shape.kv_heads;
  kernels::PageSelection choice;
  choice.q = args.q;
  choice.bounds = bounds(layer);
  choice.block_table = args.kv.block_table;
  choice.kv_length = args.kv_length;
  choice.block_size = limits_.shape.block_size;
  choice.page_tokens = kPageTokens;
  choice.budget = limits_.budget / kPageTokens;
  choice.group = args.group;
  choice.first_head = args.first_head;
  choice.max_kv_length = std::min(args.max_kv_length, limits_.tokens);
  choice.pages = TensorView(pages_, DType::i32, {sequences, kv_heads, choice.budget});
  choice.page_counts = TensorView(counts_, DType::i32, {sequences, kv_heads});
  choice.workspace = TensorView(workspace_, DType::u8,
                                {static_cast<std::int64_t>(kernels::page_selection_workspace(
                                    limits_.sequences, kv_heads, limits_.tokens, kPageTokens))});
  kernels::page_selection(choice, stream);
  return {choice.pages, choice.page_counts};
}

void Quest::attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  if (args.q.elements() == 0) return;
  const Choice choice = choose(layer, args, stream);
  kernels::PageAttention attention;
  attention.out = args.out;
  attention.q = args.q;
  attention.kv = args.kv;
  attention.kv_length = args.kv_length;
  attention.lse = args.lse;
  attention.group = args.group;
  attention.first_head = args.first_head;
  attention.scale = args.scale;
  attention.page_tokens = kPageTokens;
  attention.page_counts = choice.counts;
  attention.pages = choice.pages;
  kernels::page_attention(attention, stream);
}

}  // namespace nvllm::kvcache
