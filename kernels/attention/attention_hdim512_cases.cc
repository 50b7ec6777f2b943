// Attention with heads of more than 256 elements, for which GPUs have kernels of their own, on
// whichever backend is linked: against the definition, for every kernel.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

// Slices of 128 that are whole, in part there, and not there.
constexpr std::int64_t kHeadDims[] = {512, 384, 272, 512, 496, 400};
constexpr std::int64_t kWideBlockSizes[] = {0, 16, 24, 1, 64, 256};

// Sequences that decode, that have a few rows each, that have prompts in chunks, and all of them.
const std::vector<std::vector<Sequence>> kWideSteps = {
    {{1, 300}, {1, 17}, {1, 1}, {0, 9}, {1, 113}, {1, 16}},
    {{2, 200}, {4, 113}, {3, 2}, {0, 9}, {1, 64}, {4, 4}},
    {{40, 130}, {50, 50}, {33, 225}},
    {{1, 300}, {1, 17}, {40, 100}, {0, 9}, {3, 2}, {2, 113}}};

// Cycles through all step shapes, with head, group and block sizes.
template <typename Function>
void for_shapes(const Function& function) {
  std::size_t number = 0;
  for (const std::int64_t group : {1, 8, 3, 4}) {
    for (const std::vector<Sequence>& sequences : kWideSteps) {
      const std::int64_t head_dim = kHeadDims[number % std::size(kHeadDims)];
      const std::int64_t block_size = kWideBlockSizes[number / 2 % std::size(kWideBlockSizes)];
      const auto seed = static_cast<unsigned>(++number);
      CAPTURE(group);
      CAPTURE(head_dim);
      CAPTURE(block_size);
      CAPTURE(number);
      function(whole_groups(sequences, 1 + seed % 2, group, head_dim, block_size), seed);
    }
  }
}

template <typename T>
void add_sinks(AttentionCase<T>& one) {
  for (std::int64_t head = 0; head < one.shape.heads; ++head) {
    one.sinks.push_back(from_float<T>(static_cast<float>(head % 3) - 1));
  }
}

TEST_CASE_TEMPLATE("heads of up to 512 elements do as the definition", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for_shapes([&](const AttentionShape& shape, unsigned seed) {
    auto one = AttentionCase<T>::random(shape, seed);
    one.q_gap = 8 * (seed % 3);
    one.as_float = seed % 4 == 3;
    one.slack_tokens = seed % 2 == 0 ? 3000 : 0;
    if (seed % 3 == 0) add_sinks(one);
    check_against_reference(*backend, one);
  });
  // Sizes that a cache of E4m3 cannot have.
  for (const std::int64_t head_dim : {264, 328, 504}) {
    for (const std::int64_t rows : {1, 40}) {
      CAPTURE(head_dim);
      CAPTURE(rows);
      check_against_reference(
          *backend, AttentionCase<T>::random(whole_groups({{rows, 70}, {1, 90}}, 2, 2, head_dim),
                                             static_cast<unsigned>(head_dim)));
    }
  }
}

TEST_CASE_TEMPLATE("heads of up to 512 elements in a cache of E4m3", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for_shapes([&](const AttentionShape& shape, unsigned seed) {
    auto one = AttentionCase<T, E4m3>::random(shape, seed);
    one.slack_tokens = seed % 2 == 0 ? 3000 : 0;
    for (std::int64_t i = 0; i < (seed % 3 == 0 ? 0 : 2 * shape.kv_heads); ++i) {
      one.kv_scales.push_back(0.25f + 0.3f * static_cast<float>(i % 5));
    }
    check_against_reference(*backend, one);
  });
}

TEST_CASE_TEMPLATE("heads of up to 512 elements with windows", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for (const std::int64_t window : {1, 16, 33, 100}) {
    CAPTURE(window);
    for_shapes([&](const AttentionShape& shape, unsigned seed) {
      if ((seed + static_cast<unsigned>(window)) % 2 == 0) return;
      auto one = AttentionCase<T>::random(shape, seed);
      auto in_e4m3 = AttentionCase<T, E4m3>::random(shape, seed);
      one.window = in_e4m3.window = window;
      one.forget = in_e4m3.forget = true;
      check_against_reference(*backend, one);
      check_against_reference(*backend, in_e4m3);
    });
  }
}

TEST_CASE_TEMPLATE("long contexts of heads of 512 elements, which several blocks share", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  const bool gpu = backend->kind() == DeviceKind::cuda;
  const std::int64_t longest = gpu ? 9001 : 1001;
  for (const std::int64_t window : {0, 700}) {
    CAPTURE(window);
    auto one = AttentionCase<T>::random(
        whole_groups({{1, longest}, {1, 3}, {2, 600}, {1, 1}}, 2, 4, 512, 32), 1);
    auto in_e4m3 = AttentionCase<T, E4m3>::random(one.shape, 2);
    one.window = in_e4m3.window = window;
    check_against_reference(*backend, one);
    check_against_reference(*backend, in_e4m3);
  }
  const AttentionShape many = whole_groups(std::vector<Sequence>(70, {1, 70}), 2, 2, 512, 32);
  check_against_reference(*backend, AttentionCase<T>::random(many, 3));
  const AttentionShape chunk = whole_groups({{90, 700}, {200, 200}}, 1, 8, 512, 32);
  check_against_reference(*backend, AttentionCase<T>::random(chunk, 4));
}

TEST_CASE_TEMPLATE("heads of 512 elements: a rank's begin and end inside groups", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  struct Split {
    std::int64_t heads, kv_heads, group, first_head;
  };
  for (const Split& split : {Split{4, 2, 3, 2}, {7, 2, 4, 1}, {1, 1, 8, 7}, {2, 3, 2, 1}}) {
    for (const std::int64_t rows : {1, 30}) {
      CAPTURE(split.heads);
      CAPTURE(rows);
      const AttentionShape shape{{{rows, 40}, {1, 17}, {rows, rows}},
                                 split.heads,
                                 split.kv_heads,
                                 512,
                                 split.group,
                                 split.first_head};
      check_against_reference(*backend, AttentionCase<T>::random(shape, 9));
      check_against_reference(*backend, AttentionCase<T, E4m3>::random(shape, 9));
    }
  }
}

TEST_CASE_TEMPLATE("heads of 512 elements attend to as many tokens as `visible` says", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for (const std::int64_t rows : {1, 50}) {
    for (const std::int64_t window : {0, 40}) {
      CAPTURE(rows);
      CAPTURE(window);
      auto one = AttentionCase<T>::random(
          whole_groups({{rows, 200}, {rows, 90}, {1, 70}, {rows, 60}, {rows, 80}}, 1, 3, 512), 17);
      one.visible = {200, 17, 0, -20, 1000};
      one.window = window;
      one.as_float = rows == 1;
      check_against_reference(*backend, one);
    }
  }
}

TEST_CASE_TEMPLATE("heads of 512 elements: where blocks lie changes no bit, nor does a second run",
                   T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for (const std::int64_t rows : {1, 50}) {
    CAPTURE(rows);
    AttentionCase<T> contiguous =
        AttentionCase<T>::random(whole_groups({{rows, 400}, {rows, 90}, {0, 7}}, 2, 3, 512, 0), 4);
    contiguous.run(*backend);
    for (const std::int64_t block_size : {1, 16, 48, 64, 256}) {
      CAPTURE(block_size);
      AttentionCase<T> paged = contiguous;
      paged.shape.block_size = block_size;
      paged.layout = static_cast<unsigned>(block_size);
      paged.run(*backend);
      CHECK(same_bits(paged.out, contiguous.out));
      CHECK(same_bits(paged.lse, contiguous.lse));
    }
  }
}

TEST_CASE_TEMPLATE("heads of 512 elements: a NaN spoils what attends to it and nothing else", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for (const std::int64_t rows : {1, 40}) {
    CAPTURE(rows);
    const AttentionCase<T> clean =
        AttentionCase<T>::random(whole_groups({{rows, 80}, {rows, 90}}, 2, 2, 512), 7);
    // Row 0, head 1; a slice of the head makes all of it NaN, and no other head.
    AttentionCase<T> bad_q = clean;
    bad_q.q[512 + 300] = from_float<T>(kNan);
    bad_q.run(*backend);
    const auto nans = [](auto begin, auto end) {
      return std::count_if(begin, end, [](T x) { return std::isnan(to_float(x)); });
    };
    CHECK(nans(bad_q.out.begin(), bad_q.out.end()) == 512);
    CHECK(nans(bad_q.out.begin() + 512, bad_q.out.begin() + 1024) == 512);
    AttentionCase<T> bad_k = clean;
    bad_k.k[(79 * 2 + 1) * 512 + 200] = from_float<T>(kNan);  // the last token of sequence 0
    check_against_reference(*backend, bad_k);
  }
}

TEST_CASE("heads of 512 elements: one row of each sequence before others") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  auto one = AttentionCase<Bf16>::random(
      whole_groups({{1, 90}, {1, 300}, {1, 17}, {60, 170}, {20, 20}}, 1, 8, 512), 12);
  one.singles = 3;
  check_against_reference(*backend, one);
}

}  // namespace
}  // namespace nvllm::kernels::testing
