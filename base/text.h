// Builds messages from values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace nvllm {

// Concatenates the printed values: str("rank ", 3) is "rank 3".
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  ((void)(out << parts), ...);
  return std::move(out).str();
}

// "512 B", "1.5 KiB", "64 MiB": three significant digits.
std::string format_bytes(std::uint64_t bytes);

// "850 ns", "12.3 us", "1.25 s": three significant digits.
std::string format_duration(double seconds);

// "line 3, column 7": the position of a byte of the text, for errors about files that users write.
// Lines, columns and bytes count from 1; byte 0 is treated as byte 1.
std::string line_and_column(std::string_view text, std::size_t byte);

}  // namespace nvllm
