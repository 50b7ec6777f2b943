#include "tokenizer/unicode/utf8.h"

#include <cstdint>
#include <cstring>

namespace nvllm::tokenizer {

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

Utf8Part first_utf8_part(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Utf8Part::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Part::kInvalid, 1};
  const std::size_t size = utf8_size(bytes[0]);
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Utf8Part::kTruncated, i};
    const bool good = i == 1 ? byte(1) >= low && byte(1) <= high : is_utf8_continuation(bytes[i]);
    if (!good) return {Utf8Part::kInvalid, i};
  }
  return {Utf8Part::kValid, size};
}

std::size_t valid_utf8_prefix(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (bytes.size() - at >= 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + at, 8);
      if ((word & 0x8080808080808080) == 0) {
        at += 8;
        continue;
      }
    }
    const Utf8Part part = first_utf8_part(bytes.substr(at));
    if (part.kind != Utf8Part::kValid) break;
    at += part.size;
  }
  return at;
}

void append_valid_utf8(std::string& out, std::string_view bytes) {
  for (;;) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    out += kReplacementCharacter;
    bytes.remove_prefix(first_utf8_part(bytes).size);
  }
}

}  // namespace nvllm::tokenizer
