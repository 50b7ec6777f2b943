#include "tests/needle/rotation.h"

#include <cmath>
#include <cstdint>
#include <numeric>

#include "base/math.h"

namespace nvllm::needle {
namespace {

// Close enough to a normal distribution for an arbitrary direction.
double drawn(std::uint64_t number) {
  double sum = 0;
  for (std::uint64_t i = 0; i < 12; ++i) {
    sum += static_cast<double>(split_mix(number * 12 + i) >> 11) * 0x1p-53;
  }
  return sum - 6;
}

}  // namespace

std::vector<double> rotation(int size) {
  std::vector<double> matrix(static_cast<std::size_t>(size) * size);
  for (int row = 0; row < size; ++row) {
    const auto begin = matrix.begin() + row * size, end = begin + size;
    for (int i = 0; i < size; ++i) begin[i] = drawn(static_cast<std::uint64_t>(row * size + i));
    // Orthogonalizes it against the previous rows.
    for (auto before = matrix.begin(); before != begin; before += size) {
      const double shared = std::inner_product(begin, end, before, 0.0);
      for (int i = 0; i < size; ++i) begin[i] -= shared * before[i];
    }
    const double length = std::sqrt(std::inner_product(begin, end, begin, 0.0));
    for (auto at = begin; at != end; ++at) *at /= length;
  }
  return matrix;
}

}  // namespace nvllm::needle
