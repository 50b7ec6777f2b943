#include "kernels/common/cpu/e4m3_vector.h"

#include <doctest/doctest.h>

#include <bit>
#include <random>
#include <vector>

namespace nvllm::kernels {
namespace {

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

TEST_CASE("load8_e4m3 gives the value of each of the 256 E4m3") {
  E4m3 all[256];
  for (int i = 0; i < 256; ++i) all[i].bits = static_cast<std::uint8_t>(i);
  for (int i = 0; i < 256; i += 8) {
    float got[8];
    _mm256_storeu_ps(got, load8_e4m3(all + i));
    for (int j = 0; j < 8; ++j) {
      CAPTURE(i + j);
      CHECK(same(got[j], to_float(all[i + j])));
    }
  }
}

TEST_CASE("store8_e4m3 rounds as from_float<E4m3>()") {
  std::mt19937 random(9);
  std::vector<float> values = {0, -0.0f, 448, -448, 449, 1e30f, -1e30f, 1e-30f, 1e-40f};
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(-std::numeric_limits<float>::infinity());
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  for (int bits = 0; bits < 0x7e; ++bits) {  // half-way
    const auto at = [](int i) { return to_float(E4m3{static_cast<std::uint8_t>(i)}); };
    values.push_back((at(bits) + at(bits + 1)) / 2);
    values.push_back(-values.back());
  }
  while (values.size() % 8 != 0 || values.size() < 40000) {
    values.push_back(std::ldexp(static_cast<float>(random() % 16384) - 8192,
                                static_cast<int>(random() % 24) - 24));
  }
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); i += 8) {
    E4m3 got[8];
    store8_e4m3(got, _mm256_loadu_ps(&values[i]));
    for (std::size_t j = 0; j < 8; ++j)
      wrong += got[j].bits != from_float<E4m3>(values[i + j]).bits;
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace nvllm::kernels
