// Penalties, bias and banned ids against their plain definition, over random histories; on
// whichever backend is linked.
#include <algorithm>
#include <cmath>

#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"
#include "kernels/sampling/testing/references.h"
#include "kernels/sampling/testing/sampling_case.h"

namespace nvllm::kernels {
namespace {

using testing::kInfinity;
using testing::kNan;
using testing::Placed;
using testing::PlacedCase;
using testing::SamplingCase;

constexpr std::int64_t kListWords = 64;
constexpr std::int64_t kBlockSize = 4, kBlocks = 50;

// Rows with lists and histories.
struct PenaltyCase {
  SamplingCase sampling;
  std::vector<std::int32_t> lists, allowed, history, table;
  std::int64_t allowed_words, table_blocks;

  PenaltyCase(std::int64_t rows, std::int64_t own, unsigned seed, std::int64_t gap = 0)
      : sampling(rows, own, rows, seed, gap),
        lists(rows * kListWords),
        history(kBlocks * kBlockSize),
        allowed_words((own + 31) / 32 + 1),
        table_blocks(12) {
    std::mt19937 random(seed);
    // Few different tokens, so that they come again.
    for (std::int32_t& token : history) {
      token = static_cast<std::int32_t>(random() % 7 * (own / 7 + 1) % own);
    }
    for (std::int64_t i = 0; i < rows * table_blocks; ++i) {
      // Sequences share their first blocks.
      table.push_back(
          static_cast<std::int32_t>(i % table_blocks < 3 ? i % table_blocks : random() % kBlocks));
    }
    for (std::int64_t i = 0; i < rows * allowed_words; ++i) {
      allowed.push_back(static_cast<std::int32_t>(random() | random()));
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      sampling.slots[row] = static_cast<std::int32_t>(rows - 1 - row);
      sampling.positions[row] = static_cast<std::int32_t>(random() % (table_blocks * kBlockSize));
      sampling.params_of(row).prompt_length = static_cast<std::int32_t>(random() % 20);
    }
  }

  std::int32_t token(std::int64_t row, std::int64_t position) const {
    return history[table[row * table_blocks + position / kBlockSize] * kBlockSize +
                   position % kBlockSize];
  }

  void set_lists(std::int64_t row, const std::vector<std::int32_t>& ends,
                 const std::vector<std::pair<std::int32_t, float>>& bias,
                 const std::vector<std::vector<std::int32_t>>& bad_words) {
    SlotParams& params = sampling.params_of(row);
    std::vector<std::int32_t> words = ends;
    for (const auto& entry : bias) words.push_back(entry.first);
    for (const auto& entry : bias) {
      words.push_back(static_cast<std::int32_t>(bits_of_float(entry.second)));
    }
    params.ends = static_cast<std::int32_t>(ends.size());
    params.biases = static_cast<std::int32_t>(bias.size());
    params.bad_words = static_cast<std::int32_t>(bad_words.size());
    params.bad_tokens = 0;
    for (const auto& word : bad_words) {
      params.bad_tokens += static_cast<std::int32_t>(word.size());
      words.push_back(params.bad_tokens);
    }
    for (const auto& word : bad_words) words.insert(words.end(), word.begin(), word.end());
    REQUIRE(static_cast<std::int64_t>(words.size()) <= kListWords);
    REQUIRE(params.list_words() == static_cast<std::int32_t>(words.size()));
    std::copy(words.begin(), words.end(), lists.begin() + sampling.slots[row] * kListWords);
  }

  // All rules at random, with bad words that often match.
  void set_random_rules(unsigned seed) {
    std::mt19937 random(seed);
    const auto own = static_cast<std::uint32_t>(sampling.own);
    const auto any = [&] { return static_cast<std::int32_t>(random() % own); };
    for (std::int64_t row = 0; row < sampling.rows; ++row) {
      SlotParams& params = sampling.params_of(row);
      params.flags = SlotParams::kChangesLogits;
      if (random() % 2 == 0) params.flags |= SlotParams::kAllowed;
      if (random() % 3 != 0) {
        params.flags |= SlotParams::kPenalties;
        constexpr float kRepetition[] = {1, 1.3f, 0.7f, 2};
        constexpr float kOther[] = {0, 0.5f, -0.25f, 1.9f};
        params.repetition_penalty = kRepetition[random() % 4];
        params.presence_penalty = kOther[random() % 4];
        params.frequency_penalty = kOther[random() % 4];
      }
      params.min_length = static_cast<std::int32_t>(random() % 50);
      std::vector<std::pair<std::int32_t, float>> bias;
      std::vector<std::vector<std::int32_t>> bad_words;
      for (std::uint32_t i = 0; i < own && i < 6; ++i) {
        bias.emplace_back(static_cast<std::int32_t>(i * (own / 6 + 1) % own),
                          static_cast<float>(i) * 3 - 7);
      }
      std::sort(bias.begin(), bias.end());
      bias.erase(std::unique(bias.begin(), bias.end(),
                             [](const auto& a, const auto& b) { return a.first == b.first; }),
                 bias.end());
      const std::int32_t position = sampling.positions[row];
      for (std::int32_t length = 1; length < 6; ++length) {
        std::vector<std::int32_t> word;
        for (std::int32_t i = position - length + 1; i < position; ++i) {
          word.push_back(i < 0 || random() % 8 == 0 ? any() : token(row, i));
        }
        word.push_back(any());
        bad_words.push_back(word);
      }
      if (random() % 10 == 0) {
        params.flags = 0;
        bias.clear();
        bad_words.clear();
      }
      set_lists(row, {any(), any(), any()}, bias, bad_words);
    }
  }

  ApplyPenalties here() {
    ApplyPenalties args;
    args.rows = sampling.here();
    args.lists = TensorView(lists.data(), DType::i32, {sampling.rows, kListWords});
    args.allowed = TensorView(allowed.data(), DType::i32, {sampling.rows, allowed_words});
    args.history = TensorView(history.data(), DType::i32, {kBlocks, kBlockSize});
    args.block_table = TensorView(table.data(), DType::i32, {sampling.rows, table_blocks});
    return args;
  }

  std::vector<float> reference() const {
    PenaltyCase copy = *this;
    apply_penalties_reference(copy.here());
    return copy.sampling.logits;
  }

  // The part of the vocabulary [begin, end); begin: a multiple of 32, so that bits are words.
  PenaltyCase part(std::int64_t begin, std::int64_t end) const {
    PenaltyCase part = *this;
    part.sampling = sampling.part(begin, end);
    part.allowed.clear();
    part.allowed_words = allowed_words - begin / 32;
    for (std::int64_t row = 0; row < sampling.rows; ++row) {
      const auto from = allowed.begin() + row * allowed_words;
      part.allowed.insert(part.allowed.end(), from + begin / 32, from + allowed_words);
    }
    return part;
  }
};

// What is judged afterwards, [rows, own]. `apart`: it has a place of its own, and the logits must
// stay.
std::vector<float> penalize(Backend& backend, const PenaltyCase& c, bool apart = false,
                            std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  const SamplingCase& sampling = c.sampling;
  PlacedCase there(backend, *stream, sampling, shift);
  Placed<std::int32_t> lists(backend, *stream, c.lists), allowed(backend, *stream, c.allowed);
  Placed<std::int32_t> history(backend, *stream, c.history), table(backend, *stream, c.table);
  Placed<float> changed_logits(backend, *stream, std::vector<float>(sampling.logits.size(), -77));
  ApplyPenalties args;
  args.rows = there.args();
  if (apart) {
    args.rows.changed_logits = changed_logits.view({sampling.rows, sampling.own});
    args.rows.changed_logits.stride[0] = sampling.own + sampling.gap;
  }
  args.lists = lists.view({sampling.rows, kListWords});
  args.allowed = allowed.view({sampling.rows, c.allowed_words});
  args.history = history.view({kBlocks, kBlockSize});
  args.block_table = table.view({sampling.rows, c.table_blocks});
  apply_penalties(args, *stream);
  std::vector<float> result = there.logits.fetch();
  if (!apart) return result;
  CHECK(testing::same_bits(result, sampling.logits));
  const std::vector<float> changed = changed_logits.fetch();
  for (std::int64_t row = 0; row < sampling.rows; ++row) {
    const std::int32_t slot = sampling.slots[row];
    if (slot < 0 || (sampling.params[slot].flags & SlotParams::kChangesLogits) == 0) continue;
    const std::int64_t begin = row * (sampling.own + sampling.gap);
    std::copy_n(changed.begin() + begin, sampling.own, result.begin() + begin);
  }
  return result;
}

// Values are equal, zeros too; NaN where there should be.
bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

TEST_CASE("penalized logits are those of the definition, for all rules, shapes and places") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][3] = {{1, 7, 0},    {30, 100, 1},  {40, 33, 0},
                                         {5, 8193, 0}, {3, 20000, 3}, {60, 512, 0}};
  for (const auto& shape : kShapes) {
    CAPTURE(shape[0]);
    CAPTURE(shape[1]);
    for (unsigned seed = 1; seed < 5; ++seed) {
      PenaltyCase c(shape[0], shape[1], seed, shape[2]);
      c.set_random_rules(seed);
      if (shape[0] > 4) c.sampling.slots[4] = -1;
      const std::vector<float> right = c.reference();
      CHECK(same_values(penalize(*backend, c), right));
      CHECK(same_values(penalize(*backend, c, true), right));
      CHECK(same_values(penalize(*backend, c, false, 1), right));
    }
  }
}

TEST_CASE("parts of the vocabulary are penalized as the whole") {
  BACKEND_OR_SKIP(backend);
  PenaltyCase c(20, 3000, 3);
  c.set_random_rules(9);
  const std::vector<float> whole = c.reference();
  constexpr std::int64_t kCuts[] = {0, 32, 1024, 1024, 3000};
  for (int i = 0; i < 4; ++i) {
    const std::int64_t begin = kCuts[i], end = kCuts[i + 1];
    const std::vector<float> part = penalize(*backend, c.part(begin, end));
    std::vector<float> right;
    for (std::int64_t row = 0; row < 20; ++row) {
      right.insert(right.end(), whole.begin() + row * 3000 + begin,
                   whole.begin() + row * 3000 + end);
    }
    CHECK(same_values(part, right));
  }
}

// One row, token 5 at every position of an empty answer or prompt, logits all 2.
PenaltyCase plain_case(std::int32_t position, std::int32_t prompt_length) {
  PenaltyCase c(1, 64, 1);
  std::fill(c.sampling.logits.begin(), c.sampling.logits.end(), 2.0f);
  std::fill(c.history.begin(), c.history.end(), 5);
  std::fill(c.allowed.begin(), c.allowed.end(), -1);
  c.sampling.positions[0] = position;
  c.sampling.params[0].prompt_length = prompt_length;
  c.sampling.params[0].flags = SlotParams::kChangesLogits | SlotParams::kPenalties;
  return c;
}

TEST_CASE("penalties: repetition once for prompt or answer, the others for the answer alone") {
  BACKEND_OR_SKIP(backend);
  PenaltyCase c = plain_case(10, 4);
  SlotParams& params = c.sampling.params[0];
  params.repetition_penalty = 2;
  CHECK(penalize(*backend, c)[5] == 1);  // 2 / 2, although it was there ten times
  c.sampling.logits[5] = -2;
  CHECK(penalize(*backend, c)[5] == -4);
  params.repetition_penalty = 1;
  params.frequency_penalty = 0.5f;
  CHECK(penalize(*backend, c)[5] == -5);  // six times in the answer
  params.presence_penalty = 1;
  CHECK(penalize(*backend, c)[5] == -6);
  CHECK(penalize(*backend, c)[4] == 2);
  params.prompt_length = 10;
  CHECK(penalize(*backend, c)[5] == -2);
}

TEST_CASE("ends are out of the question while the sequence is too short, and only then") {
  BACKEND_OR_SKIP(backend);
  for (const std::int32_t position : {5, 6, 7}) {
    PenaltyCase c = plain_case(position, 4);
    c.sampling.params[0].min_length = 6;
    c.set_lists(0, {9, 63}, {}, {});
    const std::vector<float> got = penalize(*backend, c);
    CHECK(got[9] == (position < 6 ? -kInfinity : 2));
    CHECK(got[63] == got[9]);
    CHECK(got[10] == 2);
  }
}

TEST_CASE("bad words: the last token of one, where the history ends with the others") {
  BACKEND_OR_SKIP(backend);
  PenaltyCase c = plain_case(3, 2);
  c.set_lists(0, {}, {{30, 100.0f}},
              {{20}, {5, 21}, {5, 5, 5, 22}, {5, 5, 5, 5, 23}, {6, 24}, {5, 30}});
  const std::vector<float> got = penalize(*backend, c);
  CHECK(got[20] == -kInfinity);
  CHECK(got[21] == -kInfinity);
  CHECK(got[22] == -kInfinity);
  CHECK(got[23] == 2);  // the history is one short
  CHECK(got[24] == 2);
  CHECK(got[30] == -kInfinity);  // no bias brings it back
}

TEST_CASE("a NaN stays one and harms no other logit") {
  BACKEND_OR_SKIP(backend);
  PenaltyCase c(10, 300, 2);
  c.set_random_rules(3);
  for (std::int64_t row = 0; row < 10; ++row) c.sampling.at(row, 7 + row) = kNan;
  CHECK(same_values(penalize(*backend, c), c.reference()));
}

TEST_CASE("apply_penalties refuses arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  PenaltyCase c(2, 64, 1);
  ApplyPenalties bad = c.here();
  const auto why = [&] {
    return testing::refusal(*backend, [&](Stream& stream) { apply_penalties(bad, stream); });
  };
  bad.lists.shape[0] = 1;
  CHECK(why().find("apply_penalties: lists is ") == 0);
  bad = c.here();
  bad.allowed = TensorView(c.allowed.data(), DType::i32, {2, 1});
  CHECK(why().find("apply_penalties: allowed is ") == 0);
  bad = c.here();
  bad.history.dtype = DType::i64;
  CHECK(why().find("apply_penalties: history is ") == 0);
  bad = c.here();
  bad.block_table.shape[0] = 3;
  CHECK(why().find("apply_penalties: block_table is ") == 0);
}

}  // namespace
}  // namespace nvllm::kernels
