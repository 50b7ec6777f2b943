// Which two neighbouring tokens merge, how early, and into what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tokenizer/token_table.h"

namespace nvllm::tokenizer {

// A hash table with open addressing. Concurrent readers are fine.
class MergeTable {
 public:
  using Rank = std::uint32_t;
  static constexpr Rank kNever = static_cast<Rank>(-1);

  void reserve(std::size_t merges);
  // Merges are added in the order of their ranks, 0, 1, 2…; of equal pairs the last one counts.
  void add(TokenId left, TokenId right, TokenId merged);

  // The rank of merging two neighbours; kNever if they do not.
  Rank rank(TokenId left, TokenId right) const {
    if (slots_.empty()) return kNever;
    const std::uint64_t pair = key(left, right);
    for (std::size_t i = place(pair);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].pair == pair) return slots_[i].rank;
      if (slots_[i].rank == kNever) return kNever;
    }
  }
  TokenId merged(Rank rank) const { return merged_[rank]; }

  std::size_t size() const { return merged_.size(); }

 private:
  struct Slot {
    std::uint64_t pair = 0;
    Rank rank = kNever;
  } __attribute__((packed, aligned(4)));

  static std::uint64_t key(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(left) << 32 | right;
  }
  std::size_t place(std::uint64_t pair) const {
    return static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15 >> shift_);
  }
  void grow(std::size_t slots);

  std::vector<Slot> slots_;  // a power of two, at most three quarters used
  int shift_ = 63;           // 64 - log2(slots)
  std::vector<TokenId> merged_;
};

}  // namespace nvllm::tokenizer
