// Attention with sinks, on whichever backend is linked: against the definition, for every kernel.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kSinkBlockSizes[] = {0, 16, 24, 64, 128};

// Sequences that decode, that have a few rows each, that have prompts in chunks, and all of them.
const std::vector<std::vector<Sequence>> kSinkSteps = {
    {{1, 700}, {1, 17}, {1, 1}, {0, 9}, {1, 513}, {1, 1033}},
    {{2, 700}, {4, 513}, {3, 3}, {0, 9}, {4, 4}},
    {{40, 300}, {90, 90}, {130, 700}},
    {{1, 700}, {1, 17}, {40, 300}, {90, 90}, {0, 9}, {3, 3}}};

// Sinks about as large as scores, some of them larger than all, one that is nothing.
template <typename T, typename Kv = T>
AttentionCase<T, Kv> with_sinks(AttentionShape shape, unsigned seed) {
  auto one = AttentionCase<T, Kv>::random(std::move(shape), seed);
  std::mt19937 bits(seed + 1);
  std::normal_distribution<float> normal(1, 3);
  for (std::int64_t head = 0; head < one.shape.heads; ++head) {
    one.sinks.push_back(from_float<T>(normal(bits)));
  }
  if (seed % 3 == 0) one.sinks.back() = from_float<T>(-std::numeric_limits<float>::infinity());
  if (seed % 3 == 1) one.sinks.front() = from_float<T>(30);
  return one;
}

template <typename T, typename Kv>
void check_all(Backend& backend, unsigned seed) {
  std::mt19937 random(seed);
  std::size_t number = 0;
  const bool gpu = backend.kind() == DeviceKind::cuda;
  for (const std::vector<Sequence>& sequences : kSinkSteps) {
    for (const std::int64_t window : {0, 1, 70, 300}) {
      for (const std::int64_t head_dim : {64, 128, 256, 48}) {
        if (!gpu && head_dim > 64) continue;
        const std::int64_t group = std::int64_t{1} << number % 4;
        const std::int64_t block_size = kSinkBlockSizes[number++ % std::size(kSinkBlockSizes)];
        if (nvllm::testing::kSanitized && number % 7 != 0) continue;
        CAPTURE(window);
        CAPTURE(head_dim);
        CAPTURE(block_size);
        CAPTURE(group);
        auto one = with_sinks<T, Kv>(whole_groups(sequences, 2, group, head_dim, block_size),
                                     static_cast<unsigned>(random() % 1000));
        one.window = window;
        one.slack_tokens = number % 2 == 0 ? 3000 : 0;
        check_against_reference(backend, one);
      }
    }
  }
}

TEST_CASE_TEMPLATE("attention with sinks is what its definition says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  check_all<T, T>(*backend, 51);
}

TEST_CASE_TEMPLATE("the same to a cache of E4m3", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  check_all<T, E4m3>(*backend, 52);
}

TEST_CASE("a small call of every kernel with sinks") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  for (const std::int64_t rows : {1, 3, 10, 45}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const std::int64_t window : {0, 70}) {
        CAPTURE(rows);
        CAPTURE(head_dim);
        CAPTURE(window);
        const auto shape = whole_groups({{rows, 230}, {rows, 50}}, 1, 2, head_dim, 16);
        const auto check = [&](auto one) {
          one.window = window;
          check_against_reference(*backend, one);
        };
        check(with_sinks<float>(shape, 2));
        check(with_sinks<Bf16>(shape, 2));
        check(with_sinks<F16>(shape, 2));
        check(with_sinks<Bf16, E4m3>(shape, 2));
      }
    }
  }
}

TEST_CASE("the heads of a rank in the middle of a group have their own sinks") {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 40}) {
    AttentionShape shape{.sequences = {{rows, 300}, {rows, 90}},
                         .heads = 5,
                         .kv_heads = 3,
                         .head_dim = 64,
                         .group = 3,
                         .first_head = 2};
    check_against_reference(*backend, with_sinks<Bf16>(shape, 4));
  }
}

// Also of rows that attend to nothing: their lse is the sink.
TEST_CASE("sinks and `visible`") {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 3, 40}) {
    CAPTURE(rows);
    auto one = with_sinks<Bf16>(whole_groups({{rows, 200}, {rows, 200}, {rows, 0}}, 2, 2, 64), 5);
    one.visible = {90, -2, 5};
    one.as_float = rows == 3;
    check_against_reference(*backend, one);
  }
}

// A weight of such a sink relative to the largest score would be infinite, and so would the lse.
TEST_CASE_TEMPLATE("sinks far above all scores leave nothing of the values", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 3, 20, 70}) {
    for (const std::int64_t head_dim : {64, 128, 256, 320}) {
      CAPTURE(rows);
      CAPTURE(head_dim);
      auto one = with_sinks<T>(whole_groups({{rows, 300}, {rows, 90}}, 2, 2, head_dim, 16), 5);
      one.sinks = {from_float<T>(40), from_float<T>(70), from_float<T>(130), from_float<T>(3000)};
      check_against_reference(*backend, one);
      one.as_float = true;
      check_against_reference(*backend, one);
    }
  }
}

TEST_CASE_TEMPLATE("a sink of -infinity is none", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 70}) {
    auto none = AttentionCase<T>::random(whole_groups({{1, 900}, {rows, 400}}, 2, 2, 64), 6);
    AttentionCase<T> one = none;
    one.sinks.assign(4, from_float<T>(-std::numeric_limits<float>::infinity()));
    none.run(*backend);
    one.run(*backend);
    CHECK(same_bits(one.out, none.out));
    CHECK(same_bits(one.lse, none.lse));
  }
}

TEST_CASE("sinks that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  auto one = AttentionCase<float>::random(whole_groups({{1, 5}}, 1, 2, 32), 7);
  const auto stream = backend->create_stream();
  std::vector<float> memory(8);
  const auto refusal_of = [&](const TensorView& sinks) {
    return refusal(*backend, [&](Stream&) {
      one.run(*backend, *stream, [&](Attention args) {
        args.sinks = sinks;
        check_attention(args);
      });
    });
  };
  CHECK(refusal_of({memory.data(), DType::f32, {2}}) == "");
  CHECK(
      refusal_of({memory.data(), DType::f32, {3}}).starts_with("attention: sinks is float32 [3]"));
  CHECK(refusal_of({memory.data(), DType::bf16, {2}})
            .starts_with("attention: sinks is bfloat16 [2]; it must be float32"));
}

}  // namespace
}  // namespace nvllm::kernels::testing
