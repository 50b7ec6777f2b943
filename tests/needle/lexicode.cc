#include "tests/needle/lexicode.h"

#include <algorithm>
#include <bit>

namespace nvllm::needle {

std::vector<std::uint32_t> lexicode(int bits, int distance) {
  std::vector<std::uint32_t> words = {0};
  // The code is linear: a new word also adds its sums with all earlier words.
  for (std::uint32_t candidate = 1; candidate >> bits == 0; ++candidate) {
    const bool far = std::ranges::all_of(
        words, [&](std::uint32_t word) { return std::popcount(word ^ candidate) >= distance; });
    if (!far) continue;
    const std::size_t known = words.size();
    for (std::size_t i = 0; i < known; ++i) words.push_back(words[i] ^ candidate);
  }
  return words;
}

}  // namespace nvllm::needle
