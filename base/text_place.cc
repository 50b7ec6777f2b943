#include "base/text_place.h"

#include <algorithm>

#include "base/text.h"

namespace nvllm {

std::string place_in_text(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = before.size() - (newline == before.npos ? 0 : newline + 1) + 1;
  return str("line ", line, ", column ", column);
}

}  // namespace nvllm
