// The byte-level alphabet maps each byte to a printable character, so that any bytes are text.
// Bytes that are printable in Latin-1 map to themselves; the others map to characters from U+0100
// on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {

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
