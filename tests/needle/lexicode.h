// Lexicode: the words found by a greedy search in ascending order, where each must differ from all
// earlier ones in at least `distance` bits. It is linear, and for the needle model's sizes as large
// as a code can be: 32 words of 9 bits at distance 3, 512 words of 18 bits at distance 6.
#pragma once

#include <cstdint>
#include <vector>

namespace nvllm::needle {

std::vector<std::uint32_t> lexicode(int bits, int distance);

}  // namespace nvllm::needle
