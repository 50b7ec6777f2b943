// A rotation that is drawn once and for all.
#pragma once

#include <vector>

namespace nvllm::needle {

// An orthogonal matrix of so many rows, [row][column], as good as any other.
std::vector<double> rotation(int size);

}  // namespace nvllm::needle
