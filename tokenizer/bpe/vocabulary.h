// The tables of a BPE vocabulary: tokens by id and by text, and the merges of adjacent tokens; and
// the alphabet of byte-level vocabularies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {

using TokenId = std::uint32_t;

// All texts are in one string; an open-addressing hash table finds ids. Thread-safe for readers.
class TokenTable {
 public:
  // Larger ids are rejected, because tables are as long as the largest id.
  static constexpr TokenId kMaxId = (1 << 22) - 1;

  void reserve(std::size_t tokens, std::size_t bytes);

  // If a text or an id is added again, the latest one is used.
  void add(std::string_view text, TokenId id);

  std::optional<TokenId> find(std::string_view text) const;
  // The token whose text is `first` followed by `second`.
  std::optional<TokenId> find_joined(std::string_view first, std::string_view second) const;
  // nullopt if no token has this id.
  std::optional<std::string_view> text(TokenId id) const;

  // Number of texts.
  std::size_t size() const { return count_; }
  // One more than the largest id.
  TokenId end_id() const { return static_cast<TokenId>(by_id_.size()); }

 private:
  struct Text {
    std::uint32_t begin = kAbsent, size = 0;
  };
  struct Slot {
    std::uint32_t hash = 0;  // its upper bits; the slot implies the lower ones
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

// Which adjacent tokens merge, with what rank, and to which token: a hash table with open
// addressing. Thread-safe for readers.
class MergeTable {
 public:
  using Rank = std::uint32_t;
  static constexpr Rank kNever = static_cast<Rank>(-1);

  void reserve(std::size_t merges);
  // Merges are added in order of their ranks, 0, 1, 2…; the last of equal pairs is used.
  void add(TokenId left, TokenId right, TokenId merged);

  // The rank of merging two adjacent tokens; kNever if they do not merge.
  Rank rank(TokenId left, TokenId right) const {
    if (slots_.empty()) return kNever;
    const std::uint64_t pair = key(left, right);
    for (std::size_t i = slot_of(pair);; i = (i + 1) & (slots_.size() - 1)) {
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
  std::size_t slot_of(std::uint64_t pair) const {
    return static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15 >> shift_);
  }
  void grow(std::size_t slots);

  std::vector<Slot> slots_;  // a power of two, at most three quarters used
  int shift_ = 63;           // 64 - log2(slots)
  std::vector<TokenId> merged_;
};

// The byte-level alphabet maps each byte to a printable character, so that any bytes are text.
// Bytes that are printable in Latin-1 map to themselves; the others map to characters from U+0100
// on.
inline constexpr char32_t kEndOfByteChars = 0x100 + 68;

constexpr std::array<char16_t, 256> make_byte_chars() {
  std::array<char16_t, 256> chars{};
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    chars[static_cast<std::size_t>(byte)] = printable ? static_cast<char16_t>(byte) : next++;
  }
  return chars;
}
inline constexpr std::array<char16_t, 256> kByteChars = make_byte_chars();

// -1: not in the alphabet.
constexpr std::array<std::int16_t, kEndOfByteChars> make_char_bytes() {
  std::array<std::int16_t, kEndOfByteChars> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (std::size_t byte = 0; byte < 256; ++byte)
    bytes[kByteChars[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}
inline constexpr std::array<std::int16_t, kEndOfByteChars> kCharBytes = make_char_bytes();

inline void append_byte_chars(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(out, kByteChars[static_cast<unsigned char>(byte)]);
}

// Appends a token's bytes. A token with characters outside the alphabet is appended unchanged.
inline void append_token_bytes(std::string& out, std::string_view token) {
  const std::size_t before = out.size();
  for (std::size_t at = 0; at < token.size();) {
    const DecodedChar next = decode_utf8(token.data() + at);
    const int byte = next.c < kEndOfByteChars ? kCharBytes[next.c] : -1;
    if (byte < 0) {
      out.resize(before);
      out += token;
      return;
    }
    out += static_cast<char>(byte);
    at += next.size;
  }
}

}  // namespace nvllm::tokenizer
