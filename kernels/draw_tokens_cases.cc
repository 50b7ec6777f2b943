// Drawing tokens against its plain definition, and the distribution of what is drawn; on whichever backend
// is linked.
#include <algorithm>
#include <cmath>

#include "kernels/draw_tokens.h"
#include "kernels/sampling_math.h"
#include "kernels/testing/sampling_case.h"

namespace nvllm::kernels {
namespace {

using testing::kInfinity;
using testing::kNan;
using testing::Placed;
using testing::PlacedCase;
using testing::SamplingCase;

// What drawing writes.
struct Drawn {
  std::vector<std::int32_t> tokens, last_tokens;
  bool operator==(const Drawn&) const = default;
};

struct Extra {
  std::vector<float> thresholds;  // empty: none
  std::vector<std::int32_t> targets;
};

constexpr std::int32_t kUntouched = -777;

Drawn reference(SamplingCase c, Extra extra = {}) {
  Drawn drawn{std::vector<std::int32_t>(c.rows, kUntouched),
              std::vector<std::int32_t>(c.rules.size(), kUntouched)};
  std::vector<std::int64_t> scratch(draw_scratch_words(c.rows));
  DrawTokens args;
  args.rows = c.here();
  if (!extra.thresholds.empty()) {
    args.thresholds = TensorView(extra.thresholds.data(), DType::f32, {c.rows});
  }
  if (!extra.targets.empty()) {
    args.targets = TensorView(extra.targets.data(), DType::i32, {c.rows});
  }
  args.scratch = TensorView(scratch.data(), DType::i64, {draw_scratch_words(c.rows)});
  args.tokens = TensorView(drawn.tokens.data(), DType::i32, {c.rows});
  args.last_tokens =
      TensorView(drawn.last_tokens.data(), DType::i32, {static_cast<std::int64_t>(c.rules.size())});
  draw_tokens_reference(args);
  return drawn;
}

// Twice, to see that the first call leaves the scratch as it found it.
Drawn draw(Backend& backend, const SamplingCase& c, const Extra& extra = {},
           std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  const PlacedCase there(backend, *stream, c, shift);
  Placed<std::int32_t> tokens(backend, *stream, std::vector<std::int32_t>(c.rows, kUntouched));
  Placed<std::int32_t> last(backend, *stream,
                            std::vector<std::int32_t>(c.rules.size(), kUntouched));
  Placed<std::int64_t> scratch(backend, *stream,
                               std::vector<std::int64_t>(draw_scratch_words(c.rows)));
  const Placed<float> thresholds(backend, *stream, extra.thresholds);
  const Placed<std::int32_t> targets(backend, *stream, extra.targets);
  DrawTokens args;
  args.rows = there.args();
  if (!extra.thresholds.empty()) args.thresholds = thresholds.view({c.rows});
  if (!extra.targets.empty()) args.targets = targets.view({c.rows});
  args.scratch = scratch.view({draw_scratch_words(c.rows)});
  args.tokens = tokens.view({c.rows});
  args.last_tokens = last.view({static_cast<std::int64_t>(c.rules.size())});
  draw_tokens(args, *stream);
  draw_tokens(args, *stream);
  CHECK(scratch.fetch() == std::vector<std::int64_t>(draw_scratch_words(c.rows)));
  return {tokens.fetch(), last.fetch()};
}

// The same of parts of the vocabulary that end at `cuts`.
Drawn draw_in_parts(Backend& backend, const SamplingCase& c, const std::vector<std::int64_t>& cuts,
                    const Extra& extra = {}) {
  const auto stream = backend.create_stream();
  const auto parts = static_cast<std::int64_t>(cuts.size());
  Placed<std::int64_t> bests(backend, *stream, std::vector<std::int64_t>(parts * c.rows, 99));
  Placed<std::int64_t> scratch(backend, *stream,
                               std::vector<std::int64_t>(draw_scratch_words(c.rows)));
  const Placed<float> thresholds(backend, *stream, extra.thresholds);
  const Placed<std::int32_t> targets(backend, *stream, extra.targets);
  std::int64_t begin = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const PlacedCase there(backend, *stream, c.part(begin, cuts[part]));
    begin = cuts[part];
    DrawTokens args;
    args.rows = there.args();
    if (!extra.thresholds.empty()) args.thresholds = thresholds.view({c.rows});
    args.scratch = scratch.view({draw_scratch_words(c.rows)});
    args.best = TensorView(bests.data() + part * c.rows, DType::i64, {c.rows});
    draw_tokens(args, *stream);
    stream->synchronize();
  }
  REQUIRE(begin == c.own);
  const Placed<std::int32_t> slots(backend, *stream, c.slots);
  Placed<std::int32_t> tokens(backend, *stream, std::vector<std::int32_t>(c.rows, kUntouched));
  Placed<std::int32_t> last(backend, *stream,
                            std::vector<std::int32_t>(c.rules.size(), kUntouched));
  PickTokens args;
  args.bests = bests.view({parts, c.rows});
  args.slots = slots.view({c.rows});
  if (!extra.targets.empty()) args.targets = targets.view({c.rows});
  args.tokens = tokens.view({c.rows});
  args.last_tokens = last.view({static_cast<std::int64_t>(c.rules.size())});
  pick_tokens(args, *stream);
  return {tokens.fetch(), last.fetch()};
}

// A slot for each row, whose rules differ: greedy, and hotter and hotter.
SamplingCase mixed(std::int64_t rows, std::int64_t own, unsigned seed, std::int64_t gap = 0) {
  SamplingCase c(rows, own, rows, seed, gap);
  for (std::int64_t slot = 0; slot < rows; ++slot) {
    c.slots[slot] = static_cast<std::int32_t>(rows - 1 - slot);
    c.rules[slot].inverse_temperature = slot % 3 == 0 ? 0 : 2.0f / static_cast<float>(slot % 7 + 1);
  }
  return c;
}

TEST_CASE("tokens are those of the definition, for all shapes, alignments and parts") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][3] = {{1, 1, 0},    {1, 7, 0},     {3, 8, 3},     {2, 1023, 1},
                                         {5, 1025, 0}, {40, 4097, 3}, {1, 20000, 0}, {9, 9001, 7}};
  for (const auto& shape : kShapes) {
    const std::int64_t rows = shape[0], own = shape[1];
    CAPTURE(rows);
    CAPTURE(own);
    const SamplingCase c = mixed(rows, own, 3, shape[2]);
    const Drawn right = reference(c);
    CHECK(draw(*backend, c) == right);
    CHECK(draw(*backend, c, {}, 1) == right);
    CHECK(draw_in_parts(*backend, c, {own}) == right);
    CHECK(draw_in_parts(*backend, c, {own / 2, own / 2, own - own / 4, own}) == right);
  }
}

TEST_CASE("many seeds, flat and steep: quick bounds throw no winner away") {
  BACKEND_OR_SKIP(backend);
  for (const float inverse_temperature : {1e-6f, 0.01f, 1.0f, 1e5f}) {
    for (unsigned seed = 1; seed < 8; ++seed) {
      SamplingCase c(32, 1500, 32, seed);
      for (SlotRules& rules : c.rules) rules.inverse_temperature = inverse_temperature;
      CHECK(draw(*backend, c) == reference(c));
    }
  }
}

TEST_CASE("luck of one in sixteen million, in tokens that need it: bounds hold there, too") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kOwn = 9000;
  SamplingCase c(8, kOwn, 8, 1);
  std::fill(c.logits.begin(), c.logits.end(), 0.0f);
  for (SlotRules& rules : c.rules) rules.seed = 99;
  // A position where some token's noise is that of bits below 256.
  std::int32_t position = 0;
  std::int64_t lucky = -1;
  for (; lucky < 0; ++position) {
    const RandomKeys keys = noise_keys(99, position);
    for (std::int64_t id = 0; id < kOwn && lucky < 0; ++id) {
      if (keys.bits(static_cast<std::uint32_t>(id)) < 256) lucky = id;
    }
  }
  // The others reach about 9, which this one, for its logit, is sometimes above and sometimes below.
  for (std::int64_t row = 0; row < 8; ++row) {
    c.positions[row] = position - 1;
    c.at(row, lucky) = -4.0f - 2 * static_cast<float>(row);
  }
  const Drawn right = reference(c);
  CHECK(right.tokens[0] == lucky);
  CHECK(right.tokens[7] != lucky);
  CHECK(draw(*backend, c) == right);
}

TEST_CASE("only logits that are not below the threshold are drawn") {
  BACKEND_OR_SKIP(backend);
  const SamplingCase c = mixed(30, 3000, 5);
  Extra extra;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    extra.thresholds.push_back(row == 0 ? -kInfinity : static_cast<float>(row) * 0.4f);
  }
  const Drawn right = reference(c, extra);
  CHECK(draw(*backend, c, extra) == right);
  CHECK(draw_in_parts(*backend, c, {1000, 1001, 3000}, extra) == right);
  int below = 0;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const float highest =
        *std::max_element(c.logits.begin() + row * 3000, c.logits.begin() + (row + 1) * 3000);
    const float own = c.logits[row * 3000 + right.tokens[row]];
    below += own < extra.thresholds[row] && highest >= extra.thresholds[row];
  }
  CHECK(below == 0);
}

TEST_CASE("of equals the lowest id wins, wherever it lies") {
  BACKEND_OR_SKIP(backend);
  SamplingCase c(6, 9000, 6, 1);
  std::fill(c.logits.begin(), c.logits.end(), 0.5f);
  for (SlotRules& rules : c.rules) rules.inverse_temperature = 0;
  constexpr std::int64_t kFirst[] = {0, 1, 1023, 4096, 8999, 17};
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t i = kFirst[row]; i < 9000; i += 3) c.at(row, i) = 2;
  }
  for (const Drawn& drawn : {draw(*backend, c), draw_in_parts(*backend, c, {2000, 9000})}) {
    for (std::int64_t row = 0; row < 6; ++row) CHECK(drawn.tokens[row] == kFirst[row]);
  }
}

TEST_CASE("rows without a slot: their target, or nothing") {
  BACKEND_OR_SKIP(backend);
  SamplingCase c = mixed(5, 100, 2);
  c.slots[1] = -1;
  c.slots[3] = -5;
  const Extra extra{{}, {-1, 42, -1, -1, -1}};
  const Drawn right = reference(c, extra);
  CHECK(right.tokens[1] == 42);
  CHECK(right.tokens[3] == -1);
  CHECK(right.last_tokens[3] == kUntouched);  // whose rows have no slot
  CHECK(draw(*backend, c, extra) == right);
  CHECK(draw_in_parts(*backend, c, {50, 100}, extra) == right);
  CHECK(draw(*backend, c).tokens[1] == -1);
}

TEST_CASE("NaN wins nothing, infinity as it should; whatever comes, the token exists") {
  BACKEND_OR_SKIP(backend);
  SamplingCase c = mixed(12, 700, 6);
  for (std::int64_t i = 0; i < 700; ++i) {
    for (std::int64_t row = 0; row < 4; ++row) c.at(row, i) = kNan;
    for (std::int64_t row = 4; row < 8; ++row) c.at(row, i) = -kInfinity;
    if (i % 2 == 0) c.at(8, i) = c.at(9, i) = kNan;
  }
  c.at(6, 300) = c.at(7, 300) = -5;
  c.at(10, 400) = c.at(11, 400) = kInfinity;
  const Drawn right = reference(c);
  CHECK(draw(*backend, c) == right);
  CHECK(draw_in_parts(*backend, c, {128, 700}) == right);
  for (std::int64_t row = 0; row < 6; ++row) CHECK(right.tokens[row] == 0);
  for (const std::int64_t row : {6, 7}) CHECK(right.tokens[row] == 300);
  for (const std::int64_t row : {8, 9}) CHECK(right.tokens[row] % 2 == 1);
  for (const std::int64_t row : {10, 11}) CHECK(right.tokens[row] == 400);
}

// Chi-square of what `draws` rows of the same logits draw, at positions 0, 1, ...; and its degrees of freedom.
struct ChiSquare {
  double value = 0;
  int freedom = -1;
  // Whether it is within 5 standard deviations of what is expected of it.
  bool plausible() const { return std::fabs(value - freedom) < 5 * std::sqrt(2.0 * freedom); }
};

ChiSquare chi_square(const std::vector<std::int64_t>& counts, const std::vector<double>& expected) {
  ChiSquare result;
  double rest = 0, rest_expected = 0;  // of the rare ones together
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] < 10) {
      rest += static_cast<double>(counts[i]), rest_expected += expected[i];
      continue;
    }
    const double off = static_cast<double>(counts[i]) - expected[i];
    result.value += off * off / expected[i];
    ++result.freedom;
  }
  if (rest_expected >= 10) {
    result.value += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    ++result.freedom;
  }
  return result;
}

std::vector<std::int32_t> many_draws(Backend& backend, const std::vector<float>& logits,
                                     float temperature, std::int64_t draws, bool by_seed) {
  const auto own = static_cast<std::int64_t>(logits.size());
  std::vector<std::int32_t> tokens;
  constexpr std::int64_t kBatch = 1000;
  for (std::int64_t begin = 0; begin < draws; begin += kBatch) {
    SamplingCase c(kBatch, own, kBatch);
    for (std::int64_t row = 0; row < kBatch; ++row) {
      std::copy(logits.begin(), logits.end(), c.logits.begin() + row * own);
      c.slots[row] = static_cast<std::int32_t>(row);
      c.positions[row] = static_cast<std::int32_t>(by_seed ? 17 : begin + row);
      c.rules[row].inverse_temperature = 1 / temperature;
      c.rules[row].seed = static_cast<std::uint64_t>(by_seed ? begin + row : 12'345);
    }
    const Drawn drawn = draw(backend, c);
    tokens.insert(tokens.end(), drawn.tokens.begin(), drawn.tokens.end());
  }
  return tokens;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  const double most = *std::max_element(logits.begin(), logits.end());
  std::vector<double> shares;
  double sum = 0;
  for (const float logit : logits) {
    shares.push_back(std::exp((logit - most) / temperature));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

TEST_CASE("tokens come as often as softmax says: chi-square, over positions and over seeds") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kDraws = 40'000;
  for (const std::int64_t own : {5, 300}) {
    for (const float temperature : {0.5f, 1.0f, 3.0f}) {
      for (const bool by_seed : {false, true}) {
        CAPTURE(own);
        CAPTURE(temperature);
        CAPTURE(by_seed);
        const auto logits = testing::normal_values<float>(own, 9, 0, own == 5 ? 0.5f : 1.5f);
        std::vector<std::int64_t> counts(own);
        for (const std::int32_t token :
             many_draws(*backend, logits, temperature, kDraws, by_seed)) {
          ++counts[token];
        }
        std::vector<double> expected = softmax(logits, temperature);
        for (double& count : expected) count *= kDraws;
        const ChiSquare chi = chi_square(counts, expected);
        CAPTURE(chi.value);
        CAPTURE(chi.freedom);
        CHECK(chi.plausible());
      }
    }
  }
}

TEST_CASE(
    "draws at neighbouring positions, and of neighbouring seeds, know nothing of each other") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kDraws = 40'000, kOwn = 12;
  const std::vector<float> flat(kOwn, 0.0f);
  for (const bool by_seed : {false, true}) {
    const std::vector<std::int32_t> tokens = many_draws(*backend, flat, 1, kDraws, by_seed);
    for (const std::size_t distance : {1, 2, 16}) {
      CAPTURE(by_seed);
      CAPTURE(distance);
      std::vector<std::int64_t> pairs(kOwn * kOwn);
      std::int64_t count = 0;
      for (std::size_t i = distance; i < tokens.size(); ++i, ++count) {
        ++pairs[tokens[i] * kOwn + tokens[i - distance]];
      }
      const std::vector<double> expected(kOwn * kOwn, static_cast<double>(count) / (kOwn * kOwn));
      const ChiSquare chi = chi_square(pairs, expected);
      CAPTURE(chi.value);
      CHECK(chi.plausible());
    }
  }
}

TEST_CASE("a large vocabulary: rare tokens come as often as they should") {
  BACKEND_OR_SKIP(backend);
  // One token as likely as all others together.
  constexpr std::int64_t kOwn = 20'000, kDraws = 2000;
  std::vector<float> logits(kOwn, 0.0f);
  logits[12'345] = std::log(static_cast<float>(kOwn - 1));
  std::vector<std::int64_t> counts(11);  // tenths of the vocabulary, and the likely one
  for (const std::int32_t token : many_draws(*backend, logits, 1, kDraws, false)) {
    ++counts[token == 12'345 ? 10 : token * 10 / kOwn];
  }
  std::vector<double> expected(11, kDraws / 20.0);
  expected[10] = kDraws / 2.0;
  CHECK(chi_square(counts, expected).plausible());
}

TEST_CASE("draw_tokens runs in graphs, by the rules and positions of the moment") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  SamplingCase c = mixed(3, 5000, 4);
  const PlacedCase there(*backend, *stream, c);
  Placed<std::int32_t> tokens(*backend, *stream, std::vector<std::int32_t>(3));
  Placed<std::int32_t> last(*backend, *stream, std::vector<std::int32_t>(3));
  Placed<std::int64_t> scratch(*backend, *stream, std::vector<std::int64_t>(draw_scratch_words(3)));
  DrawTokens args;
  args.rows = there.args();
  args.scratch = scratch.view({draw_scratch_words(3)});
  args.tokens = tokens.view({3});
  args.last_tokens = last.view({3});
  const auto graph = backend->capture(*stream, [&] { draw_tokens(args, *stream); });
  for (const std::uint32_t position : {5u, 700u}) {
    const std::uint32_t positions[] = {position, position + 1, position + 2};
    write_words(args.rows.positions.as<std::uint32_t>(), positions, 3, *stream);
    graph->launch(*stream);
    for (int row = 0; row < 3; ++row) c.positions[row] = static_cast<std::int32_t>(positions[row]);
    CHECK(tokens.fetch() == reference(c).tokens);
  }
}

TEST_CASE("draw_tokens and pick_tokens refuse arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const auto stream = backend->create_stream();
  backend->fill(memory.data(), 0, 1 << 16, *stream);
  stream->synchronize();
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), type, shape);
  };
  DrawTokens good;
  good.rows.logits = tensor(DType::f32, {2, 50});
  good.rows.slots = good.rows.positions = tensor(DType::i32, {2});
  good.rows.rules = tensor(DType::u8, {4, sizeof(SlotRules)});
  good.scratch = tensor(DType::i64, {4});
  good.tokens = tensor(DType::i32, {2});
  good.last_tokens = tensor(DType::i32, {4});
  const auto why = [&](const auto& spoil) {
    DrawTokens bad = good;
    spoil(bad);
    return testing::refusal(*backend, [&](Stream& on) { draw_tokens(bad, on); });
  };
  CHECK(why([&](DrawTokens& bad) {
          bad.rows.logits = tensor(DType::bf16, {2, 50});
        }).find("draw_tokens: logits is bfloat16 [2, 50]; it must be float32") == 0);
  CHECK(why([&](DrawTokens& bad) {
          bad.rows.slots = tensor(DType::i32, {3});
        }).find("draw_tokens: slots is ") == 0);
  CHECK(why([&](DrawTokens& bad) {
          bad.rows.positions = tensor(DType::i64, {2});
        }).find("draw_tokens: positions is ") == 0);
  CHECK(why([&](DrawTokens& bad) {
          bad.rows.rules = tensor(DType::u8, {4, 5});
        }).find("draw_tokens: rules is ") == 0);
  CHECK(why([&](DrawTokens& bad) {
          bad.scratch = tensor(DType::i64, {3});
        }).find("draw_tokens: scratch is ") == 0);
  CHECK(why([&](DrawTokens& bad) {
          bad.tokens = tensor(DType::i32, {1});
        }).find("draw_tokens: tokens is ") == 0);
  CHECK(why([&](DrawTokens& bad) {
          bad.targets = tensor(DType::i32, {1});
        }).find("draw_tokens: targets is ") == 0);
  CHECK(why([&](DrawTokens& bad) {
          bad.thresholds = tensor(DType::i32, {2});
        }).find("draw_tokens: thresholds is ") == 0);

  PickTokens pick;
  pick.bests = tensor(DType::i64, {3, 2});
  pick.slots = tensor(DType::i32, {2});
  pick.tokens = tensor(DType::i32, {1});
  pick.last_tokens = tensor(DType::i32, {4});
  CHECK(testing::refusal(*backend, [&](Stream& on) {
          pick_tokens(pick, on);
        }).find("pick_tokens: tokens is ") == 0);
}

}  // namespace
}  // namespace nvllm::kernels
