// The runner's input to the sampler: rules and tokens of the right sequence for each row, in all
// kinds of steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"
#include "runtime/runner/testing/runner_fixture.h"

namespace nvllm::runtime {
namespace {

using testing::DeviceRank;

// transformers' log-probability of a token after row `row` of the first prompt.
struct GoldenRow {
  GoldenRow(const GoldenModel& golden, std::size_t row)
      : vocabulary(static_cast<std::size_t>(golden.config.vocab_size)),
        logits(golden.logits.data() + row * vocabulary) {
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(double{logits[i]});
    log_sum = std::log(sum);
  }
  double logprob(std::int32_t token) const { return logits[token] - log_sum; }
  std::int32_t rank(std::int32_t token) const {
    const auto higher = [&](float logit) { return logit > logits[token]; };
    return 1 + static_cast<std::int32_t>(std::count_if(logits, logits + vocabulary, higher));
  }

  std::size_t vocabulary;
  const float* logits;
  double log_sum;
};

// Logits may be off by 1e-3 (model/golden_cases.cc), so their log-sum-exp may be, too.
constexpr double kLogprobOff = 2e-3;

std::string compare(const GoldenRow& right, const TokenLogprobs& got, std::int32_t token,
                    std::size_t alternatives) {
  if (got.chosen.token != token) return str("token ", got.chosen.token, ", not ", token);
  if (std::fabs(got.chosen.logprob - right.logprob(token)) > kLogprobOff) {
    return str("logprob ", got.chosen.logprob, ", not ", right.logprob(token));
  }
  if (got.chosen.rank != right.rank(token)) return str("rank ", got.chosen.rank);
  if (got.top.size() != alternatives) return str(got.top.size(), " alternatives");
  for (std::size_t i = 0; i < alternatives; ++i) {
    const TokenLogprob& top = got.top[i];
    if (top.rank != static_cast<std::int32_t>(i) + 1) return str("alternative of rank ", top.rank);
    if (right.rank(top.token) != top.rank) return str("alternative ", top.token);
    if (std::fabs(top.logprob - right.logprob(top.token)) > kLogprobOff) {
      return str("alternative's logprob ", top.logprob);
    }
  }
  return {};
}

// Checks the first prompt's log-probabilities and its first sampled token, in steps with other
// sequences that request fewer or more of them.
void check_logprobs(DeviceRank& rank, std::int64_t chunk) {
  const GoldenModel golden("qwen3-uneven");
  const auto& prompt = golden.prompts[0];
  RunnerUnderTest runner(rank, golden, {});
  layers::SamplingRules rules = greedy();
  runner.start(0, golden.prompts[1].ids, {}, rules);
  rules.logprobs = 2;
  runner.start(1, prompt.ids, {}, rules, 3);
  rules.logprobs = 0;
  runner.start(3, golden.prompts[1].ids, {}, rules, 0);
  runner.prefill(chunk);
  runner.decode(2);
  runner.finish();
  if (rank.member.rank() > 0) return;

  std::size_t logprob_rows = 0, other_rows = 0, sampled = 0;
  for (const StepResult& result : runner.results()) {
    for (const StepResult::PromptLogprobs& logprobs : result.prompts) {
      for (const TokenLogprobs& got : logprobs.tokens) {
        if (logprobs.slot == 3) {
          CHECK(got.chosen.token == golden.prompts[1].ids[++other_rows]);
          CHECK(got.top.empty());
        } else {
          const GoldenRow right(golden, logprob_rows);
          CHECK(compare(right, got, prompt.ids[++logprob_rows], 3) == "");
        }
      }
    }
    for (const StepResult::Token& token : result.tokens) {
      CHECK((token.logprobs.chosen.rank == 1) == (token.slot != 0));
      CHECK(token.logprobs.top.size() == (token.slot == 1 ? 2 : 0));
      if (token.slot != 1 || sampled++ > 0) continue;
      const GoldenRow right(golden, prompt.ids.size() - 1);
      CHECK(compare(right, token.logprobs, prompt.continuation[0], 2) == "");
    }
  }
  CHECK(logprob_rows == prompt.ids.size() - 1);
  CHECK(other_rows == golden.prompts[1].ids.size() - 1);
  CHECK(sampled > 0);
}

TEST_CASE(
    "log-probabilities of prompts and answers are transformers', whoever else is in the step") {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      for (const std::int64_t chunk : {1, 4, 100}) {
        CAPTURE(chunk);
        check_logprobs(rank, chunk);
      }
    });
  }
}

// Rules with penalties that need all tokens, filters and sampling.
layers::SamplingRules demanding(std::uint64_t seed) {
  layers::SamplingRules rules;
  rules.temperature = 0.8f;
  rules.top_k = 40;
  rules.top_p = 0.9f;
  rules.repetition_penalty = 1.2f;
  rules.frequency_penalty = 0.4f;
  rules.seed = seed;
  rules.bad_words = {{7}, {11, 13}};
  return rules;
}

// The tokens of a sequence with such rules in slot 2; `prefill` may disturb it in any way.
template <typename Prefill>
std::vector<std::int32_t> sample(DeviceRank& rank, const RunnerTestOptions& options,
                                 const Prefill& prefill) {
  const GoldenModel golden("qwen3-gqa-tied");
  RunnerUnderTest runner(rank, golden, options);
  prefill(runner, golden);
  runner.decode(30);
  runner.finish();
  return runner.tokens(2);
}

TEST_CASE(
    "tokens sampled by demanding rules are the same alone, in company, in chunks and in graphs") {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 3}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      const auto alone = [](RunnerUnderTest& runner, const GoldenModel& golden) {
        runner.start(2, golden.prompts[1].ids, {}, demanding(5)).rows(2, 33).step();
      };
      const auto in_company = [](RunnerUnderTest& runner, const GoldenModel& golden) {
        runner.start(0, golden.prompts[0].ids, {}, demanding(6));
        runner.start(1, golden.prompts[2].ids);
        runner.start(2, golden.prompts[1].ids, {}, demanding(5));
        runner.start(3, golden.prompts[1].ids, {}, demanding(7), 1);
        runner.prefill(9);
      };
      const auto with_a_prefix = [](RunnerUnderTest& runner, const GoldenModel& golden) {
        runner.start(0, golden.prompts[1].ids).rows(0, 33).step();
        runner.start(2, golden.prompts[1].ids, {runner.blocks(0)[0], runner.blocks(0)[1]},
                     demanding(5));
        runner.rows(2, 1).step();
      };
      const auto right = sample(rank, {.graphs = false, .steps_ahead = 0}, alone);
      CHECK(sample(rank, {.steps_ahead = 2}, alone) == right);
      CHECK(sample(rank, {}, with_a_prefix) == right);
      // Other sequences sample while slot 2 is still in prefill: only its own tokens count.
      CHECK(sample(rank, {}, in_company) == right);
      if (rank.member.rank() == 0) CHECK(right.size() == 31);
    });
  }
}

}  // namespace
}  // namespace nvllm::runtime
