// The arithmetic of sampling that all devices share.
#include "kernels/sampling/sampling_math.h"

#include <algorithm>
#include <cmath>

#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::kInfinity;
using testing::kNan;

TEST_CASE("order keys order floats: equal zeros, NaN first") {
  const float rising[] = {-kInfinity, -3e38f, -1.5f, -1e-40f, 0.0f, 1e-40f, 0.1f, 7.0f, kInfinity};
  for (const float a : rising) {
    CHECK(value_of_key(order_key(a)) == a);
    CHECK(order_key(kNan) < order_key(a));
    CHECK(order_key(-kNan) == order_key(kNan));
    for (const float b : rising) CHECK((a < b) == (order_key(a) < order_key(b)));
  }
  CHECK(order_key(-0.0f) == order_key(0.0f));
  CHECK(order_key(-kInfinity) == kLowestKey);
  CHECK(order_key(kInfinity) == kHighestKey);
  CHECK(candidate(1, 5) > candidate(1, 6));
  CHECK(candidate(1, 6) > candidate(0.5f, 5));
  CHECK(candidate(kNan, 0xfffffffe) != 0);
  CHECK(id_of_candidate(candidate(2, 77)) == 77);
  CHECK(score_of_candidate(candidate(-2, 77)) == -2);
}

// Bits whose noise is looked at: both ends, around powers of two, and many in between.
std::vector<std::uint32_t> interesting_bits() {
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    all.push_back(i);
    all.push_back(~i);
    all.push_back(0x80000000u + i);
    all.push_back(0x7fffffffu - i);
  }
  for (int shift = 0; shift < 32; ++shift) {
    for (const std::uint32_t near : {-300u, -2u, -1u, 0u, 1u, 2u, 300u}) {
      all.push_back((std::uint32_t{1} << shift) + near);
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 300'000; ++i) all.push_back(random());
  return all;
}

TEST_CASE("Gumbel noise is what it should be, to the ends, and not above its quick bounds") {
  int wrong = 0, above = 0;
  for (const std::uint32_t bits : interesting_bits()) {
    const double v = (bits + 0.5) * 0x1p-32;
    const double right = -std::log(-std::log1p(-v));
    const float got = gumbel(bits);
    // Two logarithms in float32, a few roundings each, the first of which counts as an absolute
    // error.
    wrong += !(std::fabs(got - right) <= 6 * 0x1p-24 * std::max(1.0, std::fabs(right)));
    above += !(got <= max_gumbel(bits) && got <= kMaxGumbel);
  }
  CHECK(wrong == 0);
  CHECK(above == 0);
  CHECK(gumbel(0) == doctest::Approx(22.87).epsilon(0.001));
  CHECK(gumbel(0xffffffff) == doctest::Approx(-3.13).epsilon(0.01));
}

TEST_CASE("Gumbel noise falls as its bits rise") {
  std::vector<std::uint32_t> all = interesting_bits();
  std::sort(all.begin(), all.end());
  int wrong = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    // Roundings may turn neighbours around.
    wrong += gumbel(all[i]) > gumbel(all[i - 1]) + 1e-5f;
  }
  CHECK(wrong == 0);
}

TEST_CASE("masses are e^d in fixed point") {
  CHECK(mass_of(0) == std::uint64_t{1} << kMassBits);
  CHECK(mass_of(-1e30f) == 0);
  CHECK(mass_of(-kInfinity) == 0);
  CHECK(mass_of(kNan) == 0);
  std::mt19937 random(3);
  int wrong = 0;
  for (int i = 0; i < 100'000; ++i) {
    const float d = -static_cast<float>(random()) * 0x1p-32f * 30;
    const double right = std::exp(static_cast<double>(d)) * std::exp2(kMassBits);
    // d / ln 2 is rounded, and the power a few times.
    const double off = right * ((std::fabs(d) * 1.5 + 6) * 0x1p-24) + 1;
    wrong += std::fabs(static_cast<double>(mass_of(d)) - right) > off;
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace nvllm::kernels
