// The highest of many floats, for CPU kernels.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels {

// NaN aside; -infinity if there is none.
inline float highest(const float* values, std::int64_t count) {
  constexpr int kVectors = 4;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  __m256 most[kVectors];
  for (__m256& lanes : most) lanes = _mm256_set1_ps(kLeast);
  std::int64_t i = 0;
  for (; i + kVectors * kLanes <= count; i += kVectors * kLanes) {
    // max gives its second operand where one is NaN.
    for (int v = 0; v < kVectors; ++v) {
      most[v] = _mm256_max_ps(load8(values + i + v * kLanes), most[v]);
    }
  }
  most[0] = _mm256_max_ps(_mm256_max_ps(most[0], most[1]), _mm256_max_ps(most[2], most[3]));
  float lanes[kLanes];
  store8(lanes, most[0]);
  float best = kLeast;
  for (const float value : lanes) best = value > best ? value : best;
  for (; i < count; ++i) best = values[i] > best ? values[i] : best;
  return best;
}

}  // namespace nvllm::kernels
