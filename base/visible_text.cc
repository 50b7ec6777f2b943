#include "base/visible_text.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace nvllm {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

void append_byte(std::string& out, unsigned char byte) {
  out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

void append_code(std::string& out, char32_t c) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[c >> shift & 15];
}

struct Character {
  char32_t code = 0;
  std::size_t size = 0;  // in bytes; 0: invalid UTF-8
};

// The first character of a text whose first byte is not ASCII.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t size = lead < 0xC2   ? 0
                           : lead < 0xE0 ? 2
                           : lead < 0xF0 ? 3
                           : lead < 0xF5 ? 4
                                         : 0;
  if (size == 0 || size > text.size()) return {};
  char32_t code = lead & (0xFFU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return {};
    code = code << 6 | (byte & 0x3F);
  }
  const bool overlong = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return overlong || surrogate || code > 0x10FFFF ? Character() : Character{code, size};
}

// C1 controls, and the embeddings, overrides and isolates of bidirectional text.
bool is_hidden(char32_t c) {
  return (c >= 0x80 && c < 0xA0) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x7F;
}

}  // namespace

std::string visible_text(std::string_view text, Breaks breaks) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const char c = text.front();
    const auto byte = static_cast<unsigned char>(c);
    std::size_t size = 1;
    if (is_plain(c)) {
      size = static_cast<std::size_t>(std::ranges::find_if_not(text, is_plain) - text.begin());
      out += text.substr(0, size);
    } else if (breaks == Breaks::keep && (c == '\n' || c == '\t')) {
      out += c;
    } else if (breaks == Breaks::keep && text.starts_with("\r\n")) {
      // The newline follows.
    } else if (c == '\n') {
      out += "\\n";
    } else if (const Character found = byte < 0x80 ? Character() : first_character(text);
               found.size == 0) {
      append_byte(out, byte);
    } else {
      size = found.size;
      if (is_hidden(found.code)) {
        append_code(out, found.code);
      } else {
        out += text.substr(0, size);
      }
    }
    text.remove_prefix(size);
  }
  return out;
}

std::string visible_on(int fd, std::string_view text) {
  return ::isatty(fd) == 1 ? visible_text(text, Breaks::keep) : std::string(text);
}

}  // namespace nvllm
