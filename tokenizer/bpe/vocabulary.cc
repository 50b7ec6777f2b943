#include "tokenizer/bpe/vocabulary.h"

#include <xxhash.h>

#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"

namespace nvllm::tokenizer {
namespace {

constexpr std::size_t kMinSlots = 64;

std::uint64_t hash_text(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}
std::uint32_t upper(std::uint64_t hash) {
  return static_cast<std::uint32_t>(hash >> 32);
}

}  // namespace

template <typename Equals>
std::size_t TokenTable::find_slot(std::uint64_t hash, Equals&& equals) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  while (slots_[i].id != kNoId && !(slots_[i].hash == upper(hash) && equals(slots_[i]))) {
    i = (i + 1) & mask;
  }
  return i;
}

void TokenTable::reserve(std::size_t tokens, std::size_t bytes) {
  texts_.reserve(bytes);
  by_id_.reserve(tokens);
  grow(std::bit_ceil(tokens + tokens / 3));
}

void TokenTable::grow(std::size_t slots) {
  if (slots < kMinSlots) slots = kMinSlots;
  if (slots <= slots_.size()) return;
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots));
  for (const Slot& slot : old) {
    if (slot.id == kNoId) continue;
    const std::uint64_t hash = hash_text(view(slot.text));
    slots_[find_slot(hash, [](const Slot&) { return false; })] = slot;
  }
}

void TokenTable::add(std::string_view text, TokenId id) {
  if (id > kMaxId) fail("token id ", id, " is above ", kMaxId);
  if (texts_.size() + text.size() >= std::numeric_limits<std::uint32_t>::max()) {
    fail("the texts of all tokens are above 4 GiB");
  }
  if ((count_ + 1) * 4 > slots_.size() * 3) grow(slots_.size() * 2);
  const std::uint64_t hash = hash_text(text);
  Slot& slot = slots_[find_slot(hash, [&](const Slot& s) { return view(s.text) == text; })];
  if (slot.id == kNoId) {
    ++count_;
    slot.hash = upper(hash);
    slot.text = {static_cast<std::uint32_t>(texts_.size()),
                 static_cast<std::uint32_t>(text.size())};
    texts_.append(text);
  }
  if (slot.id != kNoId && slot.id != id) by_id_[slot.id] = {};
  slot.id = id;
  if (id >= by_id_.size()) by_id_.resize(id + std::size_t{1});
  by_id_[id] = slot.text;
}

std::optional<TokenId> TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const Slot& slot =
      slots_[find_slot(hash_text(text), [&](const Slot& s) { return view(s.text) == text; })];
  if (slot.id == kNoId) return std::nullopt;
  return slot.id;
}

std::optional<TokenId> TokenTable::find_joined(std::string_view first,
                                               std::string_view second) const {
  constexpr std::size_t kShort = 256;
  char buffer[kShort];
  if (first.size() + second.size() > kShort) return find(std::string(first).append(second));
  first.copy(buffer, first.size());
  second.copy(buffer + first.size(), second.size());
  return find({buffer, first.size() + second.size()});
}

std::optional<std::string_view> TokenTable::text(TokenId id) const {
  if (id >= by_id_.size() || by_id_[id].begin == kAbsent) return std::nullopt;
  return view(by_id_[id]);
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
    std::size_t i = slot_of(slot.pair);
    while (slots_[i].rank != kNever) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

void MergeTable::add(TokenId left, TokenId right, TokenId merged) {
  if ((merged_.size() + 1) * 4 > slots_.size() * 3) grow(slots_.size() * 2);
  const std::uint64_t pair = key(left, right);
  std::size_t i = slot_of(pair);
  while (slots_[i].rank != kNever && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {pair, static_cast<Rank>(merged_.size())};
  merged_.push_back(merged);
}

}  // namespace nvllm::tokenizer
