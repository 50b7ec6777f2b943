// Tests attention to a part of a sequence's tokens, on whichever backend is linked.
#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

// A number of visible tokens as callers may give it: none, all, some, more than there are,
// negative.
std::int32_t some_visible(std::mt19937& random, const Sequence& sequence) {
  const auto tokens = static_cast<std::int32_t>(sequence.tokens);
  const auto rows = static_cast<std::int32_t>(sequence.rows);
  switch (random() % 6) {
    case 0: return 0;
    case 1: return tokens;
    case 2: return -static_cast<std::int32_t>(random() % (rows + 2));
    case 3: return tokens + 1 + static_cast<std::int32_t>(random() % 1000);
    case 4: return static_cast<std::int32_t>(random() % (tokens + 1));
    default:
      return random() % 2 == 0 ? std::numeric_limits<std::int32_t>::min()
                               : std::numeric_limits<std::int32_t>::max();
  }
}

TEST_CASE_TEMPLATE("rows attend to as many tokens as `visible` says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(11);
  const std::int64_t head_dims[] = {64, 128, 80, 64, 128, 256};
  for (int i = 0; i < (nvllm::testing::kSanitized ? 3 : 6); ++i) {
    for (const int max_rows : {1, 4, 70}) {
      std::vector<Sequence> sequences;
      for (int s = 0; s < 5; ++s) {
        sequences.push_back({static_cast<std::int64_t>(random() % (max_rows + 1)),
                             static_cast<std::int64_t>(random() % 300)});
      }
      AttentionCase<T> c = AttentionCase<T>::random(
          whole_groups(sequences, 2, 1 + random() % 4, head_dims[i], i % 2 == 0 ? 16 : 0),
          random());
      for (const Sequence& sequence : sequences) {
        c.visible.push_back(some_visible(random, sequence));
      }
      c.as_float = i >= 3;
      CAPTURE(c.shape.head_dim);
      CAPTURE(max_rows);
      check_against_reference(*backend, c);
    }
  }
}

TEST_CASE_TEMPLATE("a part of a long context, in decoding", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  AttentionCase<T> c = AttentionCase<T>::random(
      whole_groups({{1, 2100}, {1, 2100}, {1, 900}, {2, 900}, {1, 1}}, 1, 3, 64, 32), 17);
  c.visible = {2100, 1030, 0, 512, 1};
  check_against_reference(*backend, c);
}

TEST_CASE_TEMPLATE("`visible` of the whole view is no mask, and as it was without changes no bit",
                   T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 50}) {
    CAPTURE(rows);
    AttentionCase<T> without =
        AttentionCase<T>::random(whole_groups({{rows, 300}, {rows, rows}}, 2, 2, 64), 18);
    AttentionCase<T> with = without;
    with.visible = {static_cast<std::int32_t>(300 - rows + 1), 1};
    without.run(*backend);
    with.run(*backend);
    CHECK(same_bits(with.out, without.out));
    CHECK(same_bits(with.lse, without.lse));
  }
}

TEST_CASE_TEMPLATE("tokens that no row attends to may be anything", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 40}) {
    CAPTURE(rows);
    AttentionCase<T> c = AttentionCase<T>::random(whole_groups({{rows, 200}}, 1, 4, 64), 19);
    c.visible = {70};
    const std::int64_t seen = 70 + rows - 1;
    std::fill(c.k.begin() + seen * 64, c.k.end(), from_float<T>(kNan));
    std::fill(c.v.begin() + seen * 64, c.v.end(), from_float<T>(kNan));
    check_against_reference(*backend, c);
    c.run(*backend);
    CHECK(std::none_of(c.out.begin(), c.out.end(), [](T x) { return std::isnan(to_float(x)); }));
  }
}

TEST_CASE_TEMPLATE("results in float32 are those that are rounded", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 60}) {
    CAPTURE(rows);
    AttentionCase<T> rounded =
        AttentionCase<T>::random(whole_groups({{rows, 1200}, {rows, 70}}, 1, 4, 72), 20);
    AttentionCase<T> floats = rounded;
    floats.as_float = true;
    rounded.run(*backend);
    floats.run(*backend);
    CHECK(same_bits(floats.out, rounded.out));
    CHECK(same_bits(floats.lse, rounded.lse));
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
