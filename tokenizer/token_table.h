// The tokens of a vocabulary: id -> text and text -> id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::tokenizer {

using TokenId = std::uint32_t;

// Texts lie one after the other in one string; ids are found by open addressing over their hashes.
// Concurrent readers are fine.
class TokenTable {
 public:
  // Larger ids are refused: tables are as long as the largest id.
  static constexpr TokenId kMaxId = (1 << 22) - 1;

  void reserve(std::size_t tokens, std::size_t bytes);

  // A text that comes again keeps its last id, an id that comes again its last text.
  void add(std::string_view text, TokenId id);

  std::optional<TokenId> find(std::string_view text) const;
  // The token whose text is `first` followed by `second`.
  std::optional<TokenId> find_joined(std::string_view first, std::string_view second) const;
  // Nothing for ids between others that no token has.
  std::optional<std::string_view> text(TokenId id) const;

  // How many texts there are.
  std::size_t size() const { return count_; }
  // One more than the largest id.
  TokenId end_id() const { return static_cast<TokenId>(by_id_.size()); }

 private:
  struct Text {
    std::uint32_t begin = kAbsent, size = 0;
  };
  struct Slot {
    std::uint32_t hash = 0;  // its upper bits; the place tells the lower ones
    TokenId id = kNoId;
    Text text;
  };
  static constexpr std::uint32_t kAbsent = static_cast<std::uint32_t>(-1);
  static constexpr TokenId kNoId = static_cast<TokenId>(-1);

  template <typename Equals>
  std::size_t find_slot(std::uint64_t hash, Equals&& equals) const;
  std::string_view view(Text text) const {
    return std::string_view(texts_).substr(text.begin, text.size);
  }
  void grow(std::size_t slots);

  std::string texts_;
  std::vector<Text> by_id_;
  std::vector<Slot> slots_;  // a power of two, at most three quarters used
  std::size_t count_ = 0;
};

}  // namespace nvllm::tokenizer
