#include "device/e4m3.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

namespace nvllm {
namespace {

// Every E4m3 has its value by the definition of the format.
TEST_CASE("the value of each of the 256 E4m3") {
  for (int bits = 0; bits < 256; ++bits) {
    CAPTURE(bits);
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float value = to_float(E4m3{static_cast<std::uint8_t>(bits)});
    if (exponent == 15 && mantissa == 7) {
      CHECK(std::isnan(value));
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    CHECK(double{value} == (bits < 128 ? magnitude : -magnitude));
    CHECK(std::signbit(value) == (bits >= 128));
    CHECK(from_float<E4m3>(value).bits == bits);
  }
}

// The neighbours of x, found by looking at all of them; of two equally near ones the even one.
std::uint8_t nearest(float x) {
  int best = 0;
  for (int bits = 0; bits < 0x7f; ++bits) {
    const auto distance = [&](int of) {
      return std::fabs(double{to_float(E4m3{static_cast<std::uint8_t>(of)})} - std::fabs(x));
    };
    if (distance(bits) < distance(best)) best = bits;
    if (distance(bits) == distance(best) && bits % 2 == 0) best = bits;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

TEST_CASE("a float becomes the nearest E4m3, ties to even") {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const float unit = static_cast<float>(random() % 65536) / 65536 + 1;
    const float x =
        std::ldexp(random() % 2 == 0 ? unit : -unit, static_cast<int>(random() % 22) - 13);
    CAPTURE(x);
    CHECK(from_float<E4m3>(x).bits == nearest(x));
  }
  for (int bits = 0; bits < 0x7e; ++bits) {  // half-way between two of them
    const float low = to_float(E4m3{static_cast<std::uint8_t>(bits)});
    const float high = to_float(E4m3{static_cast<std::uint8_t>(bits + 1)});
    CHECK(from_float<E4m3>((low + high) / 2).bits == bits + bits % 2);
  }
}

TEST_CASE("what is too large becomes 448, and a NaN stays one") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 449.0f, 464.0f, 1e6f, kInfinity}) {
    CHECK(to_float(from_float<E4m3>(x)) == 448);
    CHECK(to_float(from_float<E4m3>(-x)) == -448);
  }
  CHECK(std::isnan(to_float(from_float<E4m3>(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(from_float<E4m3>(0.0f).bits == 0);
  CHECK(from_float<E4m3>(-0.0f).bits == 0x80);
}

}  // namespace
}  // namespace nvllm
