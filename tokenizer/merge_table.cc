#include "tokenizer/merge_table.h"

#include <bit>
#include <utility>

namespace nvllm::tokenizer {
namespace {
constexpr std::size_t kMinSlots = 64;
}

void MergeTable::reserve(std::size_t merges) {
  merged_.reserve(merges);
  grow(std::bit_ceil(merges + merges / 3));
}

void MergeTable::grow(std::size_t slots) {
  if (slots < kMinSlots) slots = kMinSlots;
  if (slots <= slots_.size()) return;
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots));
  shift_ = 64 - std::countr_zero(slots);
  for (const Slot& slot : old) {
    if (slot.rank == kNever) continue;
    std::size_t i = place(slot.pair);
    while (slots_[i].rank != kNever) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

void MergeTable::add(TokenId left, TokenId right, TokenId merged) {
  if ((merged_.size() + 1) * 4 > slots_.size() * 3) grow(slots_.size() * 2);
  const std::uint64_t pair = key(left, right);
  std::size_t i = place(pair);
  while (slots_[i].rank != kNever && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {pair, static_cast<Rank>(merged_.size())};
  merged_.push_back(merged);
}

}  // namespace nvllm::tokenizer
