// Attention with a window, on whichever backend is linked: against the definition, for windows and
// contexts around tiles, boxes and segments; and what lies before the windows is not read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kWindows[] = {1,   2,   15,  16,  17,  31,  63,  64,  65,
                                     127, 128, 129, 200, 256, 257, 600, 5000};
// Contiguous, and blocks of which a tile of any kernel is one, a part or several; copied in bulk or
// not.
constexpr std::int64_t kWindowBlockSizes[] = {0, 16, 24, 32, 64, 128, 256};

// Sequences that decode, that have a few rows each, that have prompts in chunks, and all of them.
const std::vector<std::vector<Sequence>> kWindowSteps = {
    {{1, 700}, {1, 17}, {1, 1}, {0, 9}, {1, 513}, {1, 16}, {1, 1033}},
    {{2, 700}, {4, 513}, {3, 2}, {0, 9}, {1, 64}, {4, 4}},
    {{40, 300}, {90, 90}, {130, 700}, {33, 1025}},
    {{1, 700}, {1, 17}, {40, 300}, {90, 90}, {0, 9}, {3, 2}, {2, 513}}};

template <typename T, typename Kv = T>
AttentionCase<T, Kv> windowed(AttentionShape shape, std::int64_t window, unsigned seed) {
  auto one = AttentionCase<T, Kv>::random(std::move(shape), seed);
  one.window = window;
  return one;
}

TEST_CASE_TEMPLATE("attention with a window is what its definition says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const bool all = backend->kind() == DeviceKind::cuda;
  std::mt19937 random(31);
  std::size_t number = 0;
  for (const std::int64_t window : kWindows) {
    for (const std::vector<Sequence>& sequences : kWindowSteps) {
      if (nvllm::testing::kSanitized && number % 11 != 0) {
        ++number;
        continue;
      }
      const std::int64_t head_dim = number % 3 == 0 ? 128 : 64;
      const std::int64_t group = std::int64_t{1} << number % 4;
      const std::int64_t block_size = kWindowBlockSizes[number % std::size(kWindowBlockSizes)];
      ++number;
      CAPTURE(window);
      CAPTURE(number);
      auto one = windowed<T>(whole_groups(sequences, 1, group, all ? head_dim : 32, block_size),
                             window, random());
      one.forget = true;
      check_against_reference(*backend, one);
    }
  }
}

TEST_CASE("windows of random sequences, also of a cache of E4m3") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(32);
  const bool gpu = backend->kind() == DeviceKind::cuda;
  for (int i = 0; i < (nvllm::testing::kSanitized ? 3 : gpu ? 60 : 16); ++i) {
    const auto group = static_cast<std::int64_t>(1 + random() % 9);
    const int max_rows = i % 3 == 0 ? 1 : i % 3 == 1 ? 4 : 60;
    const AttentionShape shape = whole_groups(
        some_sequences(random, 2, max_rows, 600), 1 + random() % 2, group,
        16 * static_cast<std::int64_t>(1 + random() % 8), kWindowBlockSizes[random() % 7]);
    const auto window = static_cast<std::int64_t>(1 + random() % 400);
    CAPTURE(i);
    CAPTURE(window);
    auto one = windowed<float>(shape, window, random());
    auto quantized = windowed<Bf16, E4m3>(shape, window, random());
    auto half = windowed<F16>(shape, window, random());
    one.forget = quantized.forget = half.forget = true;
    one.slack_tokens = quantized.slack_tokens = half.slack_tokens = random() % 3000;
    half.as_float = i % 2 == 0;
    check_against_reference(*backend, one);
    check_against_reference(*backend, quantized);
    check_against_reference(*backend, half);
  }
}

// Heads that Hopper's kernels have, and rows for each of them.
TEST_CASE_TEMPLATE("windows in a cache of E4m3, in blocks of all sizes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  std::mt19937 random(37);
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t block_size : kWindowBlockSizes) {
      for (const std::int64_t window : {1, 33, 100, 300}) {
        CAPTURE(head_dim);
        CAPTURE(block_size);
        CAPTURE(window);
        const std::vector<Sequence>& sequences = kWindowSteps[random() % kWindowSteps.size()];
        auto one = windowed<T, E4m3>(whole_groups(sequences, 1, 4, head_dim, block_size), window,
                                     random());
        one.forget = true;
        check_against_reference(*backend, one);
      }
    }
  }
}

TEST_CASE_TEMPLATE("long contexts with windows that several blocks share", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  const bool gpu = backend->kind() == DeviceKind::cuda;  // with kernels for windows and heads
  for (const std::int64_t window : {100, 1000, 3000}) {
    for (const std::int64_t head_dim : {64, 128}) {
      if (!gpu && (window != 1000 || head_dim != 64)) continue;
      CAPTURE(window);
      auto decode = windowed<T>(whole_groups({{1, 5003}, {1, 70}}, 1, 4, head_dim), window, 1);
      decode.forget = true;
      check_against_reference(*backend, decode);
      const std::vector<Sequence> many(70, {1, 1500});
      check_against_reference(*backend, windowed<T>(whole_groups(many, 2, 1, head_dim), window, 2));
      auto chunk = windowed<T>(whole_groups({{70, 5003}}, 1, 2, head_dim, 32), window, 3);
      chunk.forget = true;
      check_against_reference(*backend, chunk);
    }
  }
}

template <typename T, typename Kv>
void check_small(Backend& backend) {
  // 2 and 6 packed rows are for the decode kernels, 20 for Ampere's, 90 for prefill.
  for (const std::int64_t rows : {1, 3, 10, 45}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const std::int64_t block_size : {16, 24}) {
        CAPTURE(rows);
        CAPTURE(head_dim);
        CAPTURE(block_size);
        auto one =
            windowed<T, Kv>(whole_groups({{rows, 230}, {rows, 50}}, 1, 2, head_dim, block_size), 70,
                            static_cast<unsigned>(rows));
        one.forget = true;
        one.slack_tokens = 300;
        check_against_reference(backend, one);
      }
    }
  }
}

TEST_CASE("a small call of every kernel with a window") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  check_small<float, float>(*backend);
  check_small<Bf16, Bf16>(*backend);
  check_small<F16, F16>(*backend);
  check_small<float, E4m3>(*backend);
  check_small<Bf16, E4m3>(*backend);
  check_small<F16, E4m3>(*backend);
}

TEST_CASE_TEMPLATE("a window as long as the context changes no bit", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t slack : {0, 3000}) {
    for (const std::int64_t rows : {1, 70}) {
      CAPTURE(slack);
      CAPTURE(rows);
      auto all = AttentionCase<T>::random(whole_groups({{1, 900}, {rows, 400}}, 2, 2, 64), 33);
      AttentionCase<T> windowed = all;
      windowed.window = 900 + slack / 2;
      windowed.slack_tokens = slack;
      all.slack_tokens = slack / 2;
      all.run(*backend);
      windowed.run(*backend);
      CHECK(same_bits(windowed.out, all.out));
      CHECK(same_bits(windowed.lse, all.lse));
    }
  }
}

// Splits are planned from the window, so no bit depends on how much comes before it.
TEST_CASE_TEMPLATE("the length of the context before the window changes no bit", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 3, 80}) {
    for (const std::int64_t window : {1, 60, 300}) {
      CAPTURE(rows);
      CAPTURE(window);
      const auto near = windowed<T>(whole_groups({{rows, 600}}, 2, 4, 64), window, 38);
      AttentionCase<T> first = near;
      first.run(*backend);
      auto far = windowed<T>(whole_groups({{rows, 600 + 1024}}, 2, 4, 64), window, 39);
      far.q = near.q;
      std::copy(near.k.begin(), near.k.end(), far.k.begin() + 1024 * far.token_elements());
      std::copy(near.v.begin(), near.v.end(), far.v.begin() + 1024 * far.token_elements());
      far.slack_tokens = 7000;
      far.run(*backend);
      CHECK(same_bits(far.out, first.out));
      CHECK(same_bits(far.lse, first.lse));
    }
  }
}

TEST_CASE_TEMPLATE("where blocks lie, and how large they are, changes no bit with a window", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 50, 150}) {
    CAPTURE(rows);
    auto contiguous = windowed<T>(whole_groups({{rows, 500}, {1, 90}, {0, 7}}, 2, 3, 64, 0), 75, 4);
    contiguous.run(*backend);
    for (const std::int64_t block_size : {1, 8, 16, 48, 64, 256}) {
      for (const unsigned layout : {0, 1}) {
        CAPTURE(block_size);
        AttentionCase<T> paged = contiguous;
        paged.shape.block_size = block_size;
        paged.layout = layout;
        paged.forget = true;
        paged.run(*backend);
        CHECK(same_bits(paged.out, contiguous.out));
        CHECK(same_bits(paged.lse, contiguous.lse));
      }
    }
  }
}

TEST_CASE_TEMPLATE(
    "tokens before the windows of all rows are not read, and NaN there does not show", T,
    FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  int number = 0;
  for (const std::int64_t head_dim : {64, 128, 32}) {
    for (const std::int64_t block_size : {0, 16, 24, 128}) {
      for (const std::int64_t rows : {1, 3, 30, 100, 300}) {
        for (const std::int64_t window : {1, 40, 300}) {
          if (nvllm::testing::kSanitized && number++ % 11 != 0) continue;
          CAPTURE(head_dim);
          CAPTURE(block_size);
          CAPTURE(rows);
          CAPTURE(window);
          const auto clean =
              windowed<T>(whole_groups({{rows, 800}}, 1, 2, head_dim, block_size), window, 34);
          AttentionCase<T> dirty = clean, first = clean;
          const std::int64_t before = 800 - rows + 1 - window;
          std::fill_n(dirty.k.begin(), before * dirty.token_elements(), from_float<T>(kNan));
          std::fill_n(dirty.v.begin(), before * dirty.token_elements(), from_float<T>(kNan));
          first.run(*backend);
          dirty.run(*backend);
          CHECK(same_bits(dirty.out, first.out));
          CHECK(same_bits(dirty.lse, first.lse));
        }
      }
    }
  }
}

TEST_CASE("a window moves with `visible`, also behind the view") {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 3, 40}) {
    for (const std::int64_t window : {1, 30, 150}) {
      CAPTURE(rows);
      CAPTURE(window);
      auto one = windowed<Bf16>(
          whole_groups({{rows, 200}, {rows, 200}, {rows, 200}, {rows, 64}, {rows, 64}}, 2, 2, 64),
          window, 40);
      one.visible = {90, -2, 210, 64 + 29, 2000000000};
      check_against_reference(*backend, one);
    }
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
