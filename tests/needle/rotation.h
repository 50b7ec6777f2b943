// A fixed random rotation.
#pragma once

#include <vector>

namespace nvllm::needle {

// A random orthogonal matrix with `size` rows, [row][column].
std::vector<double> rotation(int size);

}  // namespace nvllm::needle
