// Building messages out of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace nvllm {

// The parts as they would be printed, one after the other: str("rank ", 3) is "rank 3".
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  ((void)(out << parts), ...);
  return std::move(out).str();
}

// "512 B", "1.5 KiB", "64 MiB": three digits, for people.
std::string format_bytes(std::uint64_t bytes);

// "850 ns", "12.3 us", "1.25 s": three digits, for people.
std::string format_duration(double seconds);

}  // namespace nvllm
