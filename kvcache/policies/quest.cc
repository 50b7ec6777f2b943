#include "kvcache/policies/quest.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "kernels/sparse/gather_pages.h"

namespace nvllm::kvcache {
namespace {

std::int64_t block_pages(const BlockShape& shape) {
  return divide_up(shape.block_size, Quest::kPageTokens);
}

// Bytes of a page's bounds in one layer.
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

constexpr std::int64_t kBudget = QuestLimits{}.budget;

// Bytes of the keys, or values, of all sequences.
std::size_t half_bytes(const BlockShape& shape) {
  return static_cast<std::size_t>(GatheredQuest::kSequences * kBudget * shape.kv_heads *
                                  shape.head_dim) *
         size_of(shape.dtype);
}

}  // namespace

std::size_t Quest::block_bytes(const BlockShape& shape) {
  return static_cast<std::size_t>(shape.layers * block_pages(shape)) * page_bytes(shape);
}

std::size_t Quest::bytes(const QuestLimits& limits) {
  return Sizes(limits).bytes();
}

Quest::Quest(Backend& backend, const QuestLimits& limits)
    : limits_(limits), arena_(backend.allocate(MemoryKind::device, bytes(limits), "quest")) {
  NVLLM_CHECK(limits.shape.by_layer.empty(), "layers differ in their heads");
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

void Quest::update_bounds(std::int64_t layer, const kernels::Attention& args, Stream& stream,
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

Quest::Selection Quest::select(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
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

void Quest::run_attention(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  if (args.q.elements() == 0) return;
  const Selection selection = select(layer, args, stream);
  kernels::PageAttention attention;
  attention.out = args.out;
  attention.q = args.q;
  attention.kv = args.kv;
  attention.kv_scales = args.kv_scales;
  attention.kv_length = args.kv_length;
  attention.lse = args.lse;
  attention.group = args.group;
  attention.first_head = args.first_head;
  attention.scale = args.scale;
  attention.page_tokens = kPageTokens;
  attention.page_counts = selection.counts;
  attention.pages = selection.pages;
  kernels::page_attention(attention, stream);
}

GatheredQuest::GatheredQuest(Backend& backend, Quest& quest, const BlockShape& shape)
    : shape_(shape),
      quest_(quest),
      memory_(backend.allocate(MemoryKind::device, bytes(shape), "quest")) {}

std::size_t GatheredQuest::bytes(const BlockShape& shape) {
  return Arena::rounded(2 * half_bytes(shape)) +
         Arena::rounded(static_cast<std::size_t>(kSequences) * sizeof(std::int32_t));
}

void GatheredQuest::run_attention(std::int64_t layer, const kernels::Attention& args,
                                  const TensorView& one_each, const Blocks& blocks,
                                  Stream& stream) {
  const std::int64_t sequences = args.kv_length.shape[0];
  for (std::int64_t first = 0; first < sequences; first += kSequences) {
    const std::int64_t count = std::min(kSequences, sequences - first);
    kernels::Attention part = args;
    part.q = args.q.rows(first, count);
    part.out = args.out.rows(first, count);
    if (args.lse.data != nullptr) part.lse = args.lse.rows(first, count);
    part.kv_length = args.kv_length.rows(first, count);
    part.kv.block_table = args.kv.block_table.rows(first, count);
    part.query_start = one_each.rows(0, count + 1);
    part.max_query_rows = 1;
    attend_group(layer, part, blocks, stream);
  }
}

// For at most kSequences.
void GatheredQuest::attend_group(std::int64_t layer, const kernels::Attention& args,
                                 const Blocks& blocks, Stream& stream) {
  const std::int64_t sequences = args.kv_length.shape[0];
  const Quest::Selection selection = quest_.select(layer, args, stream);
  auto* const keys = static_cast<unsigned char*>(memory_.data());
  const std::size_t half = half_bytes(shape_);
  const auto tensor = [&](unsigned char* data) {
    return TensorView(data, shape_.dtype, {sequences, kBudget, shape_.kv_heads, shape_.head_dim});
  };
  kernels::GatherPages gather;
  gather.to = {.keys = tensor(keys), .values = tensor(keys + half), .block_table = {}};
  gather.to_length = TensorView(keys + Arena::rounded(2 * half), DType::i32, {sequences});
  gather.pages = selection.pages;
  gather.page_counts = selection.counts;
  gather.kv_length = args.kv_length;
  gather.block_table = args.kv.block_table;
  gather.page_tokens = Quest::kPageTokens;
  gather.resident = blocks.on_device;
  gather.block_map = blocks.block_map;
  gather.addresses = blocks.addresses;
  gather.offset = blocks.offset;
  kernels::gather_pages(gather, stream);

  kernels::Attention attention = args;
  attention.kv = gather.to;
  attention.kv_length = gather.to_length;
  attention.max_kv_length = kBudget;
  kernels::attention(attention, stream);
}

}  // namespace nvllm::kvcache
