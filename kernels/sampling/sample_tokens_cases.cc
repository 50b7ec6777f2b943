// sample_tokens() against its plain definition, on whichever backend is linked.
#include <algorithm>
#include <cmath>

#include "kernels/pointwise/copy.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"
#include "kernels/sampling/testing/references.h"
#include "kernels/sampling/testing/sampling_case.h"

namespace nvllm::kernels {
namespace {

using testing::kInfinity;
using testing::kNan;
using testing::kUntouched;
using testing::Placed;
using testing::PlacedCase;
using testing::sample;
using testing::Sampled;
using testing::SampleExtras;
using testing::SamplingCase;

Sampled reference_samples(SamplingCase c, SampleExtras extra = {}) {
  Sampled sampled{std::vector<std::int32_t>(c.rows, kUntouched),
                  std::vector<std::int32_t>(c.params.size(), kUntouched)};
  std::vector<std::int64_t> scratch(sample_scratch_words(c.rows));
  SampleTokens args;
  args.rows = c.here();
  if (!extra.thresholds.empty()) {
    args.thresholds = TensorView(extra.thresholds.data(), DType::f32, {c.rows});
  }
  if (!extra.targets.empty()) {
    args.targets = TensorView(extra.targets.data(), DType::i32, {c.rows});
  }
  args.scratch = TensorView(scratch.data(), DType::i64, {sample_scratch_words(c.rows)});
  args.tokens = TensorView(sampled.tokens.data(), DType::i32, {c.rows});
  args.last_tokens = TensorView(sampled.last_tokens.data(), DType::i32,
                                {static_cast<std::int64_t>(c.params.size())});
  sample_tokens_reference(args);
  return sampled;
}

// The same of parts of the vocabulary that end at `cuts`.
Sampled sample_in_parts(Backend& backend, const SamplingCase& c,
                        const std::vector<std::int64_t>& cuts, const SampleExtras& extra = {}) {
  const auto stream = backend.create_stream();
  const auto parts = static_cast<std::int64_t>(cuts.size());
  Placed<std::int64_t> bests(backend, *stream, std::vector<std::int64_t>(parts * c.rows, 99));
  Placed<std::int64_t> scratch(backend, *stream,
                               std::vector<std::int64_t>(sample_scratch_words(c.rows)));
  const Placed<float> thresholds(backend, *stream, extra.thresholds);
  const Placed<std::int32_t> targets(backend, *stream, extra.targets);
  std::int64_t begin = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const PlacedCase there(backend, *stream, c.part(begin, cuts[part]));
    begin = cuts[part];
    SampleTokens args;
    args.rows = there.args();
    if (!extra.thresholds.empty()) args.thresholds = thresholds.view({c.rows});
    args.scratch = scratch.view({sample_scratch_words(c.rows)});
    args.best = TensorView(bests.data() + part * c.rows, DType::i64, {c.rows});
    sample_tokens(args, *stream);
    stream->synchronize();
  }
  REQUIRE(begin == c.own);
  const Placed<std::int32_t> slots(backend, *stream, c.slots);
  Placed<std::int32_t> tokens(backend, *stream, std::vector<std::int32_t>(c.rows, kUntouched));
  Placed<std::int32_t> last(backend, *stream,
                            std::vector<std::int32_t>(c.params.size(), kUntouched));
  ReduceSamples args;
  args.bests = bests.view({parts, c.rows});
  args.slots = slots.view({c.rows});
  if (!extra.targets.empty()) args.targets = targets.view({c.rows});
  args.tokens = tokens.view({c.rows});
  args.last_tokens = last.view({static_cast<std::int64_t>(c.params.size())});
  reduce_samples(args, *stream);
  return {tokens.fetch(), last.fetch()};
}

// A slot for each row, whose rules differ: greedy, and hotter and hotter.
SamplingCase mixed(std::int64_t rows, std::int64_t own, unsigned seed, std::int64_t gap = 0) {
  SamplingCase c(rows, own, rows, seed, gap);
  for (std::int64_t slot = 0; slot < rows; ++slot) {
    c.slots[slot] = static_cast<std::int32_t>(rows - 1 - slot);
    c.params[slot].inverse_temperature =
        slot % 3 == 0 ? 0 : 2.0f / static_cast<float>(slot % 7 + 1);
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
    const Sampled right = reference_samples(c);
    CHECK(sample(*backend, c) == right);
    CHECK(sample(*backend, c, {}, 1) == right);
    CHECK(sample_in_parts(*backend, c, {own}) == right);
    CHECK(sample_in_parts(*backend, c, {own / 2, own / 2, own - own / 4, own}) == right);
  }
}

TEST_CASE("many seeds, flat and steep: quick bounds throw no winner away") {
  BACKEND_OR_SKIP(backend);
  for (const float inverse_temperature : {1e-6f, 0.01f, 1.0f, 1e5f}) {
    for (unsigned seed = 1; seed < 8; ++seed) {
      SamplingCase c(32, 1500, 32, seed);
      for (SlotParams& params : c.params) params.inverse_temperature = inverse_temperature;
      CHECK(sample(*backend, c) == reference_samples(c));
    }
  }
}

TEST_CASE("noise of one in sixteen million, in tokens that need it: bounds hold there, too") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kOwn = 9000;
  SamplingCase c(8, kOwn, 8, 1);
  std::fill(c.logits.begin(), c.logits.end(), 0.0f);
  for (SlotParams& params : c.params) params.seed = 99;
  // A position where some token's noise is that of bits below 256.
  std::int32_t position = 0;
  std::int64_t lucky = -1;
  for (; lucky < 0; ++position) {
    const RandomKeys keys = noise_keys(99, position);
    for (std::int64_t id = 0; id < kOwn && lucky < 0; ++id) {
      if (keys.bits(static_cast<std::uint32_t>(id)) < 256) lucky = id;
    }
  }
  // The others reach about 9, which this one, for its logit, is sometimes above and sometimes
  // below.
  for (std::int64_t row = 0; row < 8; ++row) {
    c.positions[row] = position - 1;
    c.at(row, lucky) = -4.0f - 2 * static_cast<float>(row);
  }
  const Sampled right = reference_samples(c);
  CHECK(right.tokens[0] == lucky);
  CHECK(right.tokens[7] != lucky);
  CHECK(sample(*backend, c) == right);
}

TEST_CASE("only logits that are not below the threshold are sampled") {
  BACKEND_OR_SKIP(backend);
  const SamplingCase c = mixed(30, 3000, 5);
  SampleExtras extra;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    extra.thresholds.push_back(row == 0 ? -kInfinity : static_cast<float>(row) * 0.4f);
  }
  const Sampled right = reference_samples(c, extra);
  CHECK(sample(*backend, c, extra) == right);
  CHECK(sample_in_parts(*backend, c, {1000, 1001, 3000}, extra) == right);
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
  for (SlotParams& params : c.params) params.inverse_temperature = 0;
  constexpr std::int64_t kFirst[] = {0, 1, 1023, 4096, 8999, 17};
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t i = kFirst[row]; i < 9000; i += 3) c.at(row, i) = 2;
  }
  for (const Sampled& sampled : {sample(*backend, c), sample_in_parts(*backend, c, {2000, 9000})}) {
    for (std::int64_t row = 0; row < 6; ++row) CHECK(sampled.tokens[row] == kFirst[row]);
  }
}

TEST_CASE("rows without a slot: their target, or nothing") {
  BACKEND_OR_SKIP(backend);
  SamplingCase c = mixed(5, 100, 2);
  c.slots[1] = -1;
  c.slots[3] = -5;
  const SampleExtras extra{{}, {-1, 42, -1, -1, -1}};
  const Sampled right = reference_samples(c, extra);
  CHECK(right.tokens[1] == 42);
  CHECK(right.tokens[3] == -1);
  CHECK(right.last_tokens[3] == kUntouched);  // whose rows have no slot
  CHECK(sample(*backend, c, extra) == right);
  CHECK(sample_in_parts(*backend, c, {50, 100}, extra) == right);
  CHECK(sample(*backend, c).tokens[1] == -1);
}

TEST_CASE("NaN wins nothing, infinity as it should; of nothing but NaN there is no token") {
  BACKEND_OR_SKIP(backend);
  SamplingCase c = mixed(12, 700, 6);
  for (std::int64_t i = 0; i < 700; ++i) {
    for (std::int64_t row = 0; row < 4; ++row) c.at(row, i) = kNan;
    for (std::int64_t row = 4; row < 8; ++row) c.at(row, i) = -kInfinity;
    if (i % 2 == 0) c.at(8, i) = c.at(9, i) = kNan;
  }
  c.at(6, 300) = c.at(7, 300) = -5;
  c.at(10, 400) = c.at(11, 400) = kInfinity;
  const Sampled right = reference_samples(c);
  CHECK(sample(*backend, c) == right);
  CHECK(sample_in_parts(*backend, c, {128, 700}) == right);
  for (std::int64_t row = 0; row < 4; ++row) CHECK(right.tokens[row] == kNoToken);
  for (const std::int64_t row : {4, 5}) CHECK(right.tokens[row] == 0);
  for (const std::int64_t row : {6, 7}) CHECK(right.tokens[row] == 300);
  for (const std::int64_t row : {8, 9}) CHECK(right.tokens[row] % 2 == 1);
  for (const std::int64_t row : {10, 11}) CHECK(right.tokens[row] == 400);
}

TEST_CASE("sample_tokens runs in graphs, by the rules and positions of the moment") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  SamplingCase c = mixed(3, 5000, 4);
  const PlacedCase there(*backend, *stream, c);
  Placed<std::int32_t> tokens(*backend, *stream, std::vector<std::int32_t>(3));
  Placed<std::int32_t> last(*backend, *stream, std::vector<std::int32_t>(3));
  Placed<std::int64_t> scratch(*backend, *stream,
                               std::vector<std::int64_t>(sample_scratch_words(3)));
  SampleTokens args;
  args.rows = there.args();
  args.scratch = scratch.view({sample_scratch_words(3)});
  args.tokens = tokens.view({3});
  args.last_tokens = last.view({3});
  const auto graph = backend->capture(*stream, [&] { sample_tokens(args, *stream); });
  for (const std::uint32_t position : {5u, 700u}) {
    const std::uint32_t positions[] = {position, position + 1, position + 2};
    write_words(args.rows.positions.as<std::uint32_t>(), positions, 3, *stream);
    graph->launch(*stream);
    for (int row = 0; row < 3; ++row) c.positions[row] = static_cast<std::int32_t>(positions[row]);
    CHECK(tokens.fetch() == reference_samples(c).tokens);
  }
}

TEST_CASE("sample_tokens and reduce_samples refuse arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const auto stream = backend->create_stream();
  backend->fill(memory.data(), 0, 1 << 16, *stream);
  stream->synchronize();
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), type, shape);
  };
  SampleTokens good;
  good.rows.logits = tensor(DType::f32, {2, 50});
  good.rows.slots = good.rows.positions = tensor(DType::i32, {2});
  good.rows.params = tensor(DType::u8, {4, sizeof(SlotParams)});
  good.scratch = tensor(DType::i64, {4});
  good.tokens = tensor(DType::i32, {2});
  good.last_tokens = tensor(DType::i32, {4});
  const auto why = [&](const auto& spoil) {
    SampleTokens bad = good;
    spoil(bad);
    return testing::refusal(*backend, [&](Stream& on) { sample_tokens(bad, on); });
  };
  CHECK(why([&](SampleTokens& bad) {
          bad.rows.logits = tensor(DType::bf16, {2, 50});
        }).find("sample_tokens: logits is bfloat16 [2, 50]; it must be float32") == 0);
  CHECK(why([&](SampleTokens& bad) {
          bad.rows.slots = tensor(DType::i32, {3});
        }).find("sample_tokens: slots is ") == 0);
  CHECK(why([&](SampleTokens& bad) {
          bad.rows.positions = tensor(DType::i64, {2});
        }).find("sample_tokens: positions is ") == 0);
  CHECK(why([&](SampleTokens& bad) {
          bad.rows.params = tensor(DType::u8, {4, 5});
        }).find("sample_tokens: params is ") == 0);
  CHECK(why([&](SampleTokens& bad) {
          bad.scratch = tensor(DType::i64, {3});
        }).find("sample_tokens: scratch is ") == 0);
  CHECK(why([&](SampleTokens& bad) {
          bad.tokens = tensor(DType::i32, {1});
        }).find("sample_tokens: tokens is ") == 0);
  CHECK(why([&](SampleTokens& bad) {
          bad.targets = tensor(DType::i32, {1});
        }).find("sample_tokens: targets is ") == 0);
  CHECK(why([&](SampleTokens& bad) {
          bad.thresholds = tensor(DType::i32, {2});
        }).find("sample_tokens: thresholds is ") == 0);

  ReduceSamples pick;
  pick.bests = tensor(DType::i64, {3, 2});
  pick.slots = tensor(DType::i32, {2});
  pick.tokens = tensor(DType::i32, {1});
  pick.last_tokens = tensor(DType::i32, {4});
  CHECK(testing::refusal(*backend, [&](Stream& on) {
          reduce_samples(pick, on);
        }).find("reduce_samples: tokens is ") == 0);
}

}  // namespace
}  // namespace nvllm::kernels
