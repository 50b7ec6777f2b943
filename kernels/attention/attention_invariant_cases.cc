// Invariant attention (Attention::invariant), on whichever backend is linked: a row has the same
// bits alone, among other rows of its sequence, and among other sequences.
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

// The last rows of a sequence, of a case with one sequence: with the tokens up to its row `last`.
template <typename T>
AttentionCase<T> rows_of(const AttentionCase<T>& all, std::int64_t first, std::int64_t last) {
  const Sequence& sequence = all.shape.sequences.front();
  const std::int64_t before = sequence.tokens - sequence.rows;
  AttentionShape shape = all.shape;
  shape.sequences = {{last - first, before + last}};
  AttentionCase<T> some(shape);
  some.q.assign(all.q.begin() + first * all.row_elements(),
                all.q.begin() + last * all.row_elements());
  some.k.assign(all.k.begin(), all.k.begin() + (before + last) * all.token_elements());
  some.v.assign(all.v.begin(), all.v.begin() + (before + last) * all.token_elements());
  some.scale = all.scale, some.window = all.window, some.sinks = all.sinks;
  return some;
}

// The same with random sequences before and after it.
template <typename T>
AttentionCase<T> in_company(const AttentionCase<T>& one, std::mt19937& random) {
  AttentionShape shape = one.shape;
  const Sequence own = shape.sequences.front();
  shape.sequences = some_sequences(random, 3, 40, 900);
  shape.sequences.insert(shape.sequences.begin() + 1, own);
  auto all = AttentionCase<T>::random(shape, random());
  const auto& before = all.shape.sequences.front();
  std::ranges::copy(one.q, all.q.begin() + before.rows * all.row_elements());
  std::ranges::copy(one.k, all.k.begin() + before.tokens * all.token_elements());
  std::ranges::copy(one.v, all.v.begin() + before.tokens * all.token_elements());
  all.scale = one.scale, all.window = one.window, all.sinks = one.sinks;
  all.slack_tokens = static_cast<std::int64_t>(random() % 4000);
  return all;
}

// decode_sequences: the first ones, of one row each, which other kernels may compute.
template <typename T>
std::vector<T> results(Backend& backend, AttentionCase<T> one, std::int64_t decode_sequences = 0) {
  const auto stream = backend.create_stream();
  one.run(backend, *stream, [&](const Attention& args) {
    Attention invariant = args;
    invariant.invariant = true;
    attention(invariant, decode_sequences, *stream);
  });
  return one.out;
}

template <typename T>
bool begins_with(const T* a, const std::vector<T>& b) {
  return std::memcmp(a, b.data(), b.size() * sizeof(T)) == 0;
}

template <typename T>
void check_rows(Backend& backend, const AttentionCase<T>& prompt, std::mt19937& random) {
  const std::vector<T> right = results(backend, prompt);
  const std::int64_t rows = prompt.rows(), elements = prompt.row_elements();
  for (const std::int64_t count : {1, 2, 5, 16, 40, 200}) {
    if (count > rows) continue;
    const auto first = static_cast<std::int64_t>(random() % (rows - count + 1));
    CAPTURE(count);
    CAPTURE(first);
    const AttentionCase<T> some = rows_of(prompt, first, first + count);
    CHECK(begins_with(right.data() + first * elements, results(backend, some)));
    const AttentionCase<T> all = in_company(some, random);
    const std::vector<T> together = results(backend, all);
    const std::int64_t at = all.shape.sequences.front().rows * elements;
    CHECK(begins_with(right.data() + first * elements,
                      {together.begin() + at, together.begin() + at + count * elements}));
  }
}

TEST_CASE_TEMPLATE("invariant: a row attends with the same bits in any company and chunk", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const unsigned seed = fresh_seed();
  std::mt19937 random(seed);
  const bool few = nvllm::testing::kSanitized || backend->kind() == DeviceKind::cpu;
  for (int i = 0; i < (few ? 4 : 24); ++i) {
    constexpr std::int64_t kHeadDims[] = {64, 128, 128, 80, 256, 512};
    const std::int64_t head_dim = few ? 32 : kHeadDims[i % 6];
    const auto group = static_cast<std::int64_t>(1 + random() % 8);
    const auto rows = static_cast<std::int64_t>(few ? 70 : 300 + random() % 500);
    const auto before = static_cast<std::int64_t>(i % 3 == 0 ? 0 : random() % 800);
    auto prompt = AttentionCase<T>::random(
        whole_groups({{rows, before + rows}}, 2, group, head_dim, i % 4 == 0 ? 0 : 16), random());
    if (i % 4 == 3) prompt.window = static_cast<std::int64_t>(1 + random() % 300);
    if (i % 5 == 4) prompt.sinks.assign(prompt.shape.heads, from_float<T>(0.5f));
    CAPTURE(i);
    CAPTURE(head_dim);
    check_rows(*backend, prompt, random);
  }
}

// Few sequences and many (on GPUs enough for other kernels to compute them), and sequences whose
// scores greatly exceed those of their first tile.
TEST_CASE_TEMPLATE("invariant: rows that decode have the bits of prefill in any number", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const unsigned seed = fresh_seed();
  std::mt19937 random(seed);
  const bool few = nvllm::testing::kSanitized || backend->kind() == DeviceKind::cpu;
  constexpr std::int64_t kSequences[] = {1, 3, 8, 20, 50, 150, 300};
  for (int i = 0; i < (few ? 2 : 14); ++i) {
    const std::int64_t decoding = kSequences[i % 7];
    std::vector<Sequence> sequences;
    for (std::int64_t s = 0; s < decoding; ++s)
      sequences.push_back({1, static_cast<std::int64_t>(1 + random() % (few ? 70 : 700))});
    const auto rows = static_cast<std::int64_t>(2 + random() % 60);
    sequences.push_back({rows, rows + static_cast<std::int64_t>(random() % 200)});
    const auto group = static_cast<std::int64_t>(1 + random() % 8);
    auto all = AttentionCase<T>::random(whole_groups(sequences, 2, group,
                                                     few          ? 32
                                                     : i % 2 == 0 ? 128
                                                                  : 64,
                                                     i % 3 == 0 ? 32 : 16),
                                        random());
    if (i % 4 == 3) all.scale *= 50;
    if (i % 5 == 4) all.sinks.assign(all.shape.heads, from_float<T>(0.5f));
    CAPTURE(i);
    CAPTURE(decoding);
    CHECK(begins_with(results(*backend, all).data(), results(*backend, all, decoding)));
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
