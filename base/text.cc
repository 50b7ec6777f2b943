#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace nvllm {
namespace {

std::string three_digits(double value, const char* unit) {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), "%.*f %s",
                value < 10    ? 2
                : value < 100 ? 1
                              : 0,
                value, unit);
  return text.data();
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return str(bytes, " B");
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  if (value == static_cast<double>(static_cast<int>(value))) {
    return str(static_cast<int>(value), ' ', kUnits[unit]);
  }
  return three_digits(value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 1e-6) return three_digits(seconds * 1e9, "ns");
  if (seconds < 1e-3) return three_digits(seconds * 1e6, "us");
  if (seconds < 1) return three_digits(seconds * 1e3, "ms");
  return three_digits(seconds, "s");
}

std::string line_and_column(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = before.size() - (newline == before.npos ? 0 : newline + 1) + 1;
  return str("line ", line, ", column ", column);
}

}  // namespace nvllm
