// Lexicode: the words that a greedy search finds, in ascending order, when each has to differ from
// all before it in at least `distance` bits. It is linear, and for the sizes that the needle model
// has as large as a code can be: 32 words of 9 bits at distance 3, 512 words of 18 bits at distance
// 6.
#pragma once

#include <cstdint>
#include <vector>

namespace nvllm::needle {

std::vector<std::uint32_t> lexicode(int bits, int distance);

}  // namespace nvllm::needle
