// Tests attention at shapes that exercise every way in which work is distributed over a GPU's
// multiprocessors.
#include "kernels/attention/testing/attention_case.h"

namespace nvllm::kernels::testing {
namespace {

TEST_CASE_TEMPLATE("few blocks share the longest of many contexts", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  const bool gpu = backend->kind() == DeviceKind::cuda;  // the CPU shares nothing out
  std::mt19937 random(23);
  std::vector<Sequence> uneven = some_sequences(random, 70, 1, 100);
  uneven[31] = {1, gpu ? 9001 : 1501};
  check_against_reference(*backend, AttentionCase<T>::random(whole_groups(uneven, 1, 2, 64), 4));
  // As many as two blocks to each multiprocessor of 132.
  uneven = some_sequences(random, 125, 1, 100);
  uneven[124] = {1, gpu ? 5003 : 1003};
  check_against_reference(*backend, AttentionCase<T>::random(whole_groups(uneven, 2, 2, 64), 5));
}

TEST_CASE_TEMPLATE("few rows, with all lengths, groups and ways to share the tokens out", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  std::mt19937 random(31);
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t group : {1, 2, 3, 4, 7, 8, 16}) {
      const int max_rows = static_cast<int>(16 / group);
      // Lengths at, before and after multiples of 16, the shortest ones too; the bound on them
      // chooses how many blocks share a sequence.
      for (const std::int64_t bound : {0, 500, 3000}) {
        AttentionShape shape =
            whole_groups({{1, 1}, {1, 16}, {max_rows, 17}, {0, 40}, {1, 31}, {max_rows, 1033}},
                         1 + random() % 2, group, head_dim, 16 << random() % 3);
        for (Sequence& sequence : some_sequences(random, 3, max_rows, 300)) {
          shape.sequences.push_back(sequence);
        }
        AttentionCase<T> c = AttentionCase<T>::random(shape, random());
        c.slack_tokens = bound;
        c.q_gap = 8 * (random() % 3);
        c.layout = random();
        CAPTURE(head_dim);
        CAPTURE(group);
        CAPTURE(bound);
        check_against_reference(*backend, c);
        // Once more, in blocks of other sizes: no bit depends on timing or on where tokens lie.
        AttentionCase<T> once = c, again = c;
        again.shape.block_size = random() % 2 == 0 ? 16 : 24;
        once.run(*backend);
        again.run(*backend);
        CHECK(same_bits(once.out, again.out));
        CHECK(same_bits(once.lse, again.lse));
      }
    }
  }
}

TEST_CASE_TEMPLATE("sequences of one row before others, as parts of one call", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  std::mt19937 random(41);
  for (const std::int64_t group : {2, 4}) {
    for (const std::int64_t singles : {1, 20}) {
      CAPTURE(group);
      CAPTURE(singles);
      std::vector<Sequence> sequences;
      for (std::int64_t s = 0; s < singles; ++s) {
        sequences.push_back({1, 1 + static_cast<std::int64_t>(random() % 150)});
      }
      for (const Sequence& more : some_sequences(random, 3, 40, 60)) sequences.push_back(more);
      sequences.push_back({70, 70 + static_cast<std::int64_t>(random() % 100)});
      AttentionCase<T> c =
          AttentionCase<T>::random(whole_groups(sequences, 2, group, 128), random());
      c.singles = singles;
      c.q_gap = 8 * (random() % 3);
      check_against_reference(*backend, c);
      c.shape.block_size = 0;  // contiguous: all in one
      if (singles == 1) check_against_reference(*backend, c);
    }
  }
}

TEST_CASE_TEMPLATE("several tiles of rows and of tokens, for all groups", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  std::mt19937 random(15);
  const std::int64_t block_sizes[] = {16, 0, 48, 256, 16, 5};
  int i = 0;
  for (const std::int64_t group : {1, 3, 4, 5, 8, 7}) {
    const std::int64_t rows = 300 / group + static_cast<std::int64_t>(random() % 20);
    const auto tokens = static_cast<std::int64_t>(random() % 300);
    AttentionCase<T> c = AttentionCase<T>::random(
        whole_groups({{rows, rows + tokens}, {1, 130}, {0, 9}, {rows / 2, rows / 2}}, 2, group,
                     i % 2 == 0 ? 128 : 64, block_sizes[i]),
        random());
    c.layout = i % 3;
    c.q_gap = i % 2 * 64;
    CAPTURE(group);
    CAPTURE(rows);
    CAPTURE(tokens);
    check_against_reference(*backend, c);
    ++i;
  }
}

TEST_CASE_TEMPLATE("more pieces of work than a GPU has multiprocessors", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  std::mt19937 random(16);
  std::vector<Sequence> even, uneven;
  for (int i = 0; i < 50; ++i) {
    const auto rows = static_cast<std::int64_t>(30 + random() % 30);
    even.push_back({rows, rows + static_cast<std::int64_t>(random() % 25)});
    uneven.push_back({i % 5 == 0 ? rows : 1, rows + static_cast<std::int64_t>(random() % 100)});
  }
  check_against_reference(*backend, AttentionCase<T>::random(whole_groups(even, 7, 4, 64), 17));
  check_against_reference(*backend, AttentionCase<T>::random(whole_groups(uneven, 4, 3, 128), 18));
  check_against_reference(*backend,
                          AttentionCase<T>::random(whole_groups({{130, 200}}, 60, 1, 64), 19));
}

}  // namespace
}  // namespace nvllm::kernels::testing
