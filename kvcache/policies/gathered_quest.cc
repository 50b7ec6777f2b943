#include "kvcache/policies/gathered_quest.h"

#include <algorithm>

#include "kernels/sparse/gather_pages.h"

namespace nvllm::kvcache {
namespace {

constexpr std::int64_t kBudget = QuestLimits{}.budget;

// Keys, or values, of all sequences.
std::size_t half_bytes(const BlockShape& shape) {
  return static_cast<std::size_t>(GatheredQuest::kSequences * kBudget * shape.kv_heads *
                                  shape.head_dim) *
         size_of(shape.dtype);
}

}  // namespace

GatheredQuest::GatheredQuest(Backend& backend, Quest& quest, const BlockShape& shape)
    : shape_(shape),
      quest_(quest),
      memory_(backend.allocate(MemoryKind::device, bytes(shape), "quest")) {}

std::size_t GatheredQuest::bytes(const BlockShape& shape) {
  return Arena::rounded(2 * half_bytes(shape)) +
         Arena::rounded(static_cast<std::size_t>(kSequences) * sizeof(std::int32_t));
}

void GatheredQuest::attend(std::int64_t layer, const kernels::Attention& args,
                           const TensorView& one_each, const Blocks& blocks, Stream& stream) {
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
    attend_some(layer, part, blocks, stream);
  }
}

// Of at most kSequences.
void GatheredQuest::attend_some(std::int64_t layer, const kernels::Attention& args,
                                const Blocks& blocks, Stream& stream) {
  const std::int64_t sequences = args.kv_length.shape[0];
  const Quest::Choice choice = quest_.choose(layer, args, stream);
  auto* const keys = static_cast<unsigned char*>(memory_.data());
  const std::size_t half = half_bytes(shape_);
  const auto tensor = [&](unsigned char* data) {
    return TensorView(data, shape_.dtype, {sequences, kBudget, shape_.kv_heads, shape_.head_dim});
  };
  kernels::GatherPages gather;
  gather.to = {.keys = tensor(keys), .values = tensor(keys + half), .block_table = {}};
  gather.to_length = TensorView(keys + Arena::rounded(2 * half), DType::i32, {sequences});
  gather.pages = choice.pages;
  gather.page_counts = choice.counts;
  gather.kv_length = args.kv_length;
  gather.block_table = args.kv.block_table;
  gather.page_tokens = Quest::kPageTokens;
  gather.resident = blocks.near;
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
