// The bounds that kernels/common/cpu/vector.h states, over floats of all sizes.
#include "kernels/common/cpu/vector.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace nvllm::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Function8 = __m256 (*)(__m256);

float at(Function8 function, float x) {
  float results[8];
  _mm256_storeu_ps(results, function(_mm256_set1_ps(x)));
  for (const float result : results) {
    if (std::bit_cast<std::uint32_t>(result) != std::bit_cast<std::uint32_t>(results[0]))
      return kNan;
  }
  return results[0];
}

// The largest error relative to the result, in units of 2^-24, between two bounds of one sign.
template <typename Exact>
double worst(Function8 function, const Exact& exact, float nearest, float farthest) {
  double worst = 0;
  const auto last = std::bit_cast<std::uint32_t>(farthest);
  for (auto bits = std::bit_cast<std::uint32_t>(nearest); bits <= last; bits += 997) {
    const auto x = std::bit_cast<float>(bits);
    const double right = exact(static_cast<double>(x));
    const double error = std::fabs(at(function, x) / right - 1) * 0x1p24;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

TEST_CASE("exp8 is within 3 units") {
  const auto exact = [](double x) { return std::exp(x); };
  CHECK(worst(exp8, exact, 0.0f, 88.0f) <= 3);
  CHECK(worst(exp8, exact, -0.0f, -87.3f) <= 3);
}

TEST_CASE("exp8 beyond what floats hold") {
  CHECK(at(exp8, 89.0f) == kInfinity);
  CHECK(at(exp8, 3e38f) == kInfinity);
  CHECK(at(exp8, kInfinity) == kInfinity);
  CHECK(at(exp8, -88.0f) == 0.0f);
  CHECK(at(exp8, -3e38f) == 0.0f);
  CHECK(at(exp8, -kInfinity) == 0.0f);
  CHECK(std::isnan(at(exp8, kNan)));
  CHECK(at(exp8, 0.0f) == 1.0f);
}

TEST_CASE("normal_share8 is within 8 units, also of its smallest results") {
  const auto exact = [](double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; };
  CHECK(worst(normal_share8, exact, 0.0f, 20.0f) <= 8);
  CHECK(worst(normal_share8, exact, -0.0f, -13.0f) <= 8);
}

TEST_CASE("normal_share8 of what is far from 0") {
  CHECK(at(normal_share8, kInfinity) == 1.0f);
  CHECK(at(normal_share8, 3e38f) == 1.0f);
  CHECK(at(normal_share8, -kInfinity) == 0.0f);
  CHECK(at(normal_share8, -3e38f) == 0.0f);
  CHECK(std::isnan(at(normal_share8, kNan)));
}

}  // namespace
}  // namespace nvllm::kernels
