#include "launcher/net/percent.h"

#include <cstddef>

namespace nvllm::launcher {
namespace {

// -1: no hexadecimal digit.
int value_of_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("/-._~").find(c) != std::string_view::npos;
}

}  // namespace

std::string percent_encoded_path(std::string_view path) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string text;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain(c)) {
      text += c;
    } else {
      text += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && value_of_digit(text[i + 1]) >= 0 &&
                        value_of_digit(text[i + 2]) >= 0;
    out += escape
               ? static_cast<char>(value_of_digit(text[i + 1]) * 16 + value_of_digit(text[i + 2]))
               : text[i];
    if (escape) i += 2;
  }
  return out;
}

}  // namespace nvllm::launcher
