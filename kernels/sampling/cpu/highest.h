// The highest of many floats, for CPU kernels.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels {

// NaN aside; -infinity if there is none.
inline float max_of(const float* values, std::int64_t count) {
  constexpr int kVectors = 4;
  constexpr float kMin = -std::numeric_limits<float>::infinity();
  __m256 maximum[kVectors];
  for (__m256& lanes : maximum) lanes = _mm256_set1_ps(kMin);
  std::int64_t i = 0;
  for (; i + kVectors * kLanes <= count; i += kVectors * kLanes) {
    // max gives its second operand where one is NaN.
    for (int v = 0; v < kVectors; ++v) {
      maximum[v] = _mm256_max_ps(load8(values + i + v * kLanes), maximum[v]);
    }
  }
  maximum[0] = _mm256_max_ps(_mm256_max_ps(maximum[0], maximum[1]), _mm256_max_ps(maximum[2], maximum[3]));
  float lanes[kLanes];
  store8(lanes, maximum[0]);
  float best = kMin;
  for (const float value : lanes) best = value > best ? value : best;
  for (; i < count; ++i) best = values[i] > best ? values[i] : best;
  return best;
}

}  // namespace nvllm::kernels
