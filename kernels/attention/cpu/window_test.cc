// Attention with a window on the CPU: against the definition, for windows and contexts around tiles
// and segments; and what lies before a row's window is not read.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kWindows[] = {1, 2, 15, 16, 63, 64, 65, 200, 256, 257, 600, 5000};

TEST_CASE_TEMPLATE("attention with a window is what its definition says", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(31);
  constexpr std::size_t kStep = nvllm::testing::kSanitized ? 2 : 1;
  for (std::size_t i = 0; i < std::size(kWindows); i += kStep) {
    const std::int64_t window = kWindows[i];
    for (const std::int64_t block_size : {0, 16}) {
      if (nvllm::testing::kSanitized && (window % 3 != 0) == (block_size == 0)) continue;
      CAPTURE(window);
      CAPTURE(block_size);
      // Decoding, chunks, whole prompts, and nothing.
      const AttentionShape shape =
          whole_groups({{1, 700}, {1, 17}, {40, 300}, {90, 90}, {0, 9}, {3, 2}, {1, 1}, {2, 513}},
                       1, 2, 32, block_size);
      AttentionCase<T> one = AttentionCase<T>::random(shape, random());
      one.window = window;
      check_against_reference(*backend, one);
    }
  }
}

TEST_CASE("windows of random sequences, also of a cache of E4m3") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(32);
  for (int i = 0; i < (nvllm::testing::kSanitized ? 3 : 16); ++i) {
    const auto group = static_cast<std::int64_t>(1 + random() % 9);
    const AttentionShape shape =
        whole_groups(some_sequences(random, 2, 60, 600), 1 + random() % 2, group,
                     16 * static_cast<std::int64_t>(1 + random() % 6), random() % 2 == 0 ? 0 : 32);
    const auto window = static_cast<std::int64_t>(1 + random() % 400);
    CAPTURE(i);
    CAPTURE(window);
    auto one = AttentionCase<float>::random(shape, random());
    one.window = window;
    check_against_reference(*backend, one);
    auto quantized = AttentionCase<Bf16, E4m3>::random(shape, random());
    quantized.window = window;
    check_against_reference(*backend, quantized);
  }
}

TEST_CASE("a window as long as the context changes no bit") {
  BACKEND_OR_SKIP(backend);
  auto all = AttentionCase<Bf16>::random(whole_groups({{1, 900}, {70, 400}}, 2, 2, 64), 33);
  AttentionCase<Bf16> windowed = all;
  windowed.window = 900;
  all.run(*backend);
  windowed.run(*backend);
  CHECK(same_bits(windowed.out, all.out));
  CHECK(same_bits(windowed.lse, all.lse));
}

TEST_CASE("tokens before the windows of all rows are not read, and NaN there does not show") {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 30, 100}) {
    for (const std::int64_t window : {1, 40, 300}) {
      CAPTURE(rows);
      CAPTURE(window);
      auto clean = AttentionCase<float>::random(whole_groups({{rows, 800}}, 1, 2, 32), 34);
      clean.window = window;
      AttentionCase<float> dirty = clean;
      const std::int64_t before = 800 - rows + 1 - window;
      std::fill_n(dirty.k.begin(), before * dirty.token_elements(), kNan);
      std::fill_n(dirty.v.begin(), before * dirty.token_elements(), kNan);
      clean.run(*backend);
      dirty.run(*backend);
      CHECK(same_bits(dirty.out, clean.out));
    }
  }
}

TEST_CASE("rows of different windows in one tile: NaN reaches those that attend to it alone") {
  BACKEND_OR_SKIP(backend);
  auto one = AttentionCase<float>::random(whole_groups({{20, 100}}, 1, 1, 32), 35);
  one.window = 8;
  // Token 85 is attended to by the rows of the tokens 85 to 92, which are rows 5 to 12.
  std::fill_n(one.v.begin() + 85 * one.token_elements(), one.token_elements(), kNan);
  one.run(*backend);
  for (std::int64_t row = 0; row < 20; ++row) {
    CAPTURE(row);
    CHECK(std::isnan(one.out[static_cast<std::size_t>(row * 32)]) == (row >= 5 && row <= 12));
  }
}

TEST_CASE("a negative window is refused") {
  BACKEND_OR_SKIP(backend);
  auto one = AttentionCase<float>::random(whole_groups({{1, 5}}, 1, 1, 32), 36);
  one.window = -1;
  CHECK_THROWS_WITH_AS(one.run(*backend),
                       "attention: window is -1; it must be a number of tokens, or 0 for all",
                       Error);
}

}  // namespace
}  // namespace nvllm::kernels::testing
