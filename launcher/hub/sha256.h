// Sha256: incremental SHA-256 hash. It uses the processor's SHA instructions if available.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nvllm::launcher {

class Sha256 {
 public:
  // portable: do not use the processor's SHA instructions.
  explicit Sha256(bool portable = false) : portable_(portable) {}

  void add(std::string_view bytes);
  // The hash of all bytes added, as 64 hexadecimal digits. Do not call add() afterwards.
  std::string finish();

 private:
  void add_blocks(const char* block, std::size_t count);

  bool portable_;
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<char, 64> block_{};  // an incomplete block
  std::size_t waiting_ = 0;       // its size
  std::uint64_t total_ = 0;
};

// The hash of a complete text.
std::string sha256_of(std::string_view bytes);

}  // namespace nvllm::launcher
