// Ids of words seen lately.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/token_table.h"

namespace nvllm::tokenizer {

// Direct-mapped: a word has one place, where the last one stays. Words that are long or have many
// ids are not kept. Memory is fixed, 2 MiB.
class WordCache {
 public:
  // A word's place; good until the next call of store().
  struct Place {
    std::size_t index;
    bool cacheable;
  };

  Place place(std::string_view word) const {
    return {XXH3_64bits(word.data(), word.size()) & (kEntries - 1), word.size() <= kMaxBytes};
  }

  // The ids; empty if the word is not here.
  std::span<const TokenId> find(Place place, std::string_view word) const {
    if (!place.cacheable || entries_.empty()) return {};
    const Entry& entry = entries_[place.index];
    if (word != std::string_view(entry.word.data(), entry.bytes)) return {};
    return {entry.ids.data(), entry.count};
  }

  void store(Place place, std::string_view word, std::span<const TokenId> ids) {
    if (!place.cacheable || ids.size() > kMaxIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry& entry = entries_[place.index];
    entry.bytes = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(ids.size());
    std::ranges::copy(word, entry.word.begin());
    std::ranges::copy(ids, entry.ids.begin());
  }

 private:
  static constexpr std::size_t kEntries = 1 << 15, kMaxBytes = 30, kMaxIds = 8;

  struct alignas(64) Entry {
    std::uint8_t bytes = 0, count = 0;
    std::array<char, kMaxBytes> word{};
    std::array<TokenId, kMaxIds> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;  // made when the first word comes
};

}  // namespace nvllm::tokenizer
