// UTF-8. All text inside the tokenizer is valid UTF-8; append_valid_utf8() ensures it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nvllm::tokenizer {

struct DecodedChar {
  char32_t c;
  std::size_t size;  // bytes, 1 to 4
};

// The character at `text`, which must be the start of a complete and valid one.
inline DecodedChar decode_utf8(const char* text) {
  const auto byte = [&](int i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// The length of the character whose first byte is `lead`.
inline std::size_t utf8_size(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

inline bool is_utf8_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// The start of the character before `end`; 0 < end.
inline std::size_t previous_char(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && is_utf8_continuation(text[end]));
  return end;
}

// Calls function(char32_t, its bytes) for each character of a valid text.
template <typename Function>
void for_each_char(std::string_view text, Function&& function) {
  for (std::size_t at = 0; at < text.size();) {
    const DecodedChar next = decode_utf8(text.data() + at);
    function(next.c, text.substr(at, next.size));
    at += next.size;
  }
}

void append_utf8(std::string& out, char32_t c);

// Classifies a prefix of bytes: a complete character (valid), the start of one that the end of the
// text cuts off (truncated), or invalid. `size` covers the character, or the longest invalid part,
// which is replaced by one U+FFFD (Unicode's "maximal subpart").
struct Utf8Part {
  enum Kind { kValid, kTruncated, kInvalid } kind;
  std::size_t size;
};
Utf8Part first_utf8_part(std::string_view bytes);

// The length of the longest prefix that is valid.
std::size_t valid_utf8_prefix(std::string_view bytes);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Appends the bytes, replacing each maximal invalid part by U+FFFD.
void append_valid_utf8(std::string& out, std::string_view bytes);

}  // namespace nvllm::tokenizer
