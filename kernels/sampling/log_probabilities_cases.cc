// Log-probabilities against their plain definition in double, on whichever backend is linked.
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

struct Results {
  std::vector<float> logprob;
  std::vector<std::int32_t> rank, top_ids;
  std::vector<float> top_logprobs;

  Results(std::int64_t rows, std::int64_t alternatives)
      : logprob(rows, -77),
        rank(rows, -77),
        top_ids(rows * alternatives, -77),
        top_logprobs(rows * alternatives, -77) {}
};

struct ScoreCase {
  SamplingCase sampling;
  std::vector<std::int32_t> tokens;
  std::int64_t alternatives;

  ScoreCase(std::int64_t rows, std::int64_t own, std::int64_t alternatives, unsigned seed = 1,
            std::int64_t gap = 0)
      : sampling(rows, own, rows, seed, gap), alternatives(alternatives) {
    std::mt19937 random(seed);
    for (std::int64_t row = 0; row < rows; ++row) {
      tokens.push_back(static_cast<std::int32_t>(random() % own));
      sampling.params_of(row).logprobs = 1;
    }
  }

  Results reference() const {
    ScoreCase copy = *this;
    const std::int64_t rows = sampling.rows, words = logprob_record_words(alternatives);
    Results results(rows, alternatives);
    std::vector<std::int32_t> records(rows * words), higher(rows);
    LogProbabilities args;
    args.rows = copy.sampling.here();
    args.tokens = TensorView(copy.tokens.data(), DType::i32, {rows});
    args.records = TensorView(records.data(), DType::i32, {rows, words});
    args.all_records = TensorView(records.data(), DType::i32, {1, rows, words});
    args.higher = TensorView(higher.data(), DType::i32, {rows});
    args.all_higher = TensorView(higher.data(), DType::i32, {1, rows});
    args.logprob = TensorView(results.logprob.data(), DType::f32, {rows});
    args.rank = TensorView(results.rank.data(), DType::i32, {rows});
    args.top_ids = TensorView(results.top_ids.data(), DType::i32, {rows, alternatives});
    args.top_logprobs = TensorView(results.top_logprobs.data(), DType::f32, {rows, alternatives});
    log_probabilities_reference(args);
    return results;
  }
};

// What one part of the vocabulary has of its own.
struct Part {
  PlacedCase placed;
  Placed<float> logprob, top_logprobs;
  Placed<std::int32_t> rank, top_ids;

  Part(Backend& backend, Stream& stream, const SamplingCase& c, std::int64_t alternatives,
       std::int64_t shift)
      : placed(backend, stream, c, shift),
        logprob(backend, stream, std::vector<float>(c.rows, -77)),
        top_logprobs(backend, stream, std::vector<float>(c.rows * alternatives, -77)),
        rank(backend, stream, std::vector<std::int32_t>(c.rows, -77)),
        top_ids(backend, stream, std::vector<std::int32_t>(c.rows * alternatives, -77)) {}
};

// The scores that parts ending at `cuts` find together.
Results score_in_parts(Backend& backend, const ScoreCase& c, const std::vector<std::int64_t>& cuts,
                       std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  const auto parts = static_cast<std::int64_t>(cuts.size());
  const std::int64_t rows = c.sampling.rows, words = logprob_record_words(c.alternatives);
  Placed<std::int32_t> records(backend, *stream,
                               std::vector<std::int32_t>(parts * rows * words, -1));
  Placed<std::int32_t> higher(backend, *stream, std::vector<std::int32_t>(parts * rows, -1));
  const Placed<std::int32_t> tokens(backend, *stream, c.tokens);
  std::vector<std::unique_ptr<Part>> there;
  std::vector<LogProbabilities> calls;
  std::int64_t begin = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    there.push_back(std::make_unique<Part>(backend, *stream, c.sampling.part(begin, cuts[part]),
                                           c.alternatives, shift));
    begin = cuts[part];
    Part& own = *there.back();
    LogProbabilities args;
    args.rows = own.placed.args();
    args.tokens = tokens.view({rows});
    args.records = TensorView(records.data() + part * rows * words, DType::i32, {rows, words});
    args.all_records = records.view({parts, rows, words});
    args.higher = TensorView(higher.data() + part * rows, DType::i32, {rows});
    args.all_higher = higher.view({parts, rows});
    args.logprob = own.logprob.view({rows});
    args.rank = own.rank.view({rows});
    args.top_ids = own.top_ids.view({rows, c.alternatives});
    args.top_logprobs = own.top_logprobs.view({rows, c.alternatives});
    calls.push_back(args);
  }
  for (const LogProbabilities& args : calls) summarize_logits(args, *stream);
  for (const LogProbabilities& args : calls) log_probabilities(args, *stream);
  if (parts > 1) {
    for (const LogProbabilities& args : calls) rank_tokens(args, *stream);
  }
  Results results(rows, c.alternatives);
  for (const auto& part : there) {
    results.logprob = part->logprob.fetch();
    results.rank = part->rank.fetch();
    results.top_ids = part->top_ids.fetch();
    results.top_logprobs = part->top_logprobs.fetch();
  }
  return results;
}

// Sums of up to 20,000 powers in float32, in chains of a few hundred; a logarithm; a difference of
// numbers up to 40.
constexpr float kOff = 3e-5f;

bool near(const std::vector<float>& got, const std::vector<float>& right) {
  return std::equal(got.begin(), got.end(), right.begin(), right.end(),
                    [](float a, float b) { return a == b || std::fabs(a - b) <= kOff; });
}

void check(const Results& got, const Results& right) {
  CHECK(got.rank == right.rank);
  CHECK(got.top_ids == right.top_ids);
  CHECK(near(got.logprob, right.logprob));
  CHECK(near(got.top_logprobs, right.top_logprobs));
}

TEST_CASE("scores are those of the definition, for all shapes, counts and parts") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][4] = {{1, 1, 3, 0},     {3, 7, 0, 1},     {20, 100, 5, 3},
                                         {5, 1025, 20, 0}, {2, 20000, 1, 0}, {3, 3000, 1024, 0}};
  for (const auto& shape : kShapes) {
    const std::int64_t own = shape[1];
    CAPTURE(own);
    const ScoreCase c(shape[0], own, shape[2], 4, shape[3]);
    const Results right = c.reference();
    check(score_in_parts(*backend, c, {own}), right);
    check(score_in_parts(*backend, c, {own}, 1), right);
    check(score_in_parts(*backend, c, {own / 2, own / 2, own - own / 4, own}), right);
  }
}

TEST_CASE("of equals the lower ids come first, and all have one rank") {
  BACKEND_OR_SKIP(backend);
  ScoreCase c(3, 5000, 10);
  for (std::int64_t i = 0; i < 5000; ++i) {
    c.sampling.at(0, i) = 1;
    c.sampling.at(1, i) = static_cast<float>(i % 3);
    c.sampling.at(2, i) = i % 1000 == 999 ? 3.0f : -0.0f;
  }
  const Results right = c.reference();
  CHECK(right.top_ids[9] == 9);
  CHECK(right.rank[0] == 1);
  check(score_in_parts(*backend, c, {5000}), right);
  check(score_in_parts(*backend, c, {3, 2500, 5000}), right);
}

TEST_CASE("masked, infinite and NaN logits give no NaN") {
  BACKEND_OR_SKIP(backend);
  ScoreCase c(10, 600, 5);
  for (std::int64_t i = 0; i < 600; ++i) {
    c.sampling.at(0, i) = -kInfinity;
    c.sampling.at(1, i) = kNan;
    if (i > 2) c.sampling.at(2, i) = -kInfinity;
    if (i % 2 == 0) c.sampling.at(3, i) = kNan;
    if (i % 100 == 7) c.sampling.at(4, i) = kInfinity;
    if (i > 300) c.sampling.at(5, i) = -kInfinity;
    c.sampling.at(6, i) = i == 5 ? 3e38f : -3e38f;
  }
  c.tokens = {5, 5, 500, 2, 107, 599, 5, 1, 2, 3};
  const Results right = c.reference();
  for (const float logprob : right.logprob) CHECK_FALSE(std::isnan(logprob));
  check(score_in_parts(*backend, c, {600}), right);
  check(score_in_parts(*backend, c, {300, 600}), right);
}

TEST_CASE("only rows that want log-probabilities get them") {
  BACKEND_OR_SKIP(backend);
  ScoreCase c(4, 100, 2);
  c.sampling.params_of(0).logprobs = -1;
  c.sampling.slots[1] = -1;  // a target
  c.sampling.slots[2] = -1;
  c.tokens[2] = -1;  // nothing
  const Results got = score_in_parts(*backend, c, {60, 100});
  check(got, c.reference());
  CHECK(got.rank[0] == -77);
  CHECK(got.rank[1] > 0);
  CHECK(got.rank[2] == -77);
  CHECK(got.top_ids[5] == -77);
}

TEST_CASE("more alternatives than there may be are refused") {
  BACKEND_OR_SKIP(backend);
  LogProbabilities args;
  std::vector<float> logits(10);
  SamplingCase c(1, 10, 1);
  args.rows = c.here();
  args.all_records.shape[0] = 1;
  args.top_ids.shape[1] = kMaxAlternatives + 1;
  CHECK(testing::refusal(*backend, [&](Stream& stream) { log_probabilities(args, stream); }) ==
        "log_probabilities: 1025 alternatives; at most 1024 can be asked for");
}

}  // namespace
}  // namespace nvllm::kernels
