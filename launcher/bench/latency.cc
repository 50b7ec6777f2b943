#include "launcher/bench/latency.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "launcher/bench/workload.h"

namespace nvllm::launcher {
namespace {

// What a sequence is allowed beyond what it needs: tokens come in faster than they are looked at, if they
// come fast or the machine is busy. What is not needed is stopped.
constexpr std::int64_t kSpareTokens = 2048;

void submit_batch(LoadGenerator& load, const LatencyPlan& plan,
                  const runtime::EngineOptions& options, PythonRandom& random) {
  const std::int64_t output_tokens = std::min(output_tokens_of(plan, options) + kSpareTokens,
                                              plan.max_model_len - plan.prompt_tokens);
  std::vector<runtime::Request> requests;
  for (std::int64_t i = 0; i < plan.batch; ++i) {
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(plan.prompt_tokens));
    for (std::int32_t& id : prompt) {
      id = static_cast<std::int32_t>(random.randint(0, plan.vocabulary - 1));
    }
    requests.push_back(make_request(std::move(prompt), output_tokens));
  }
  load.begin();
  for (const runtime::Request& request : requests) load.submit(request);
}

// Until every sequence has so many tokens more than `since` says.
void await_tokens(LoadGenerator& load, const std::vector<std::int64_t>& since, std::int64_t more) {
  const auto behind = [&] {
    for (std::size_t i = 0; i < since.size(); ++i) {
      const RequestRecord& record = load.records()[i];
      if (record.tokens >= since[i] + more) continue;
      if (record.finished) {
        fail("a sequence of the benchmark ended after ", record.tokens,
             " tokens, before the others had begun; pass a larger --max-model-len or "
             "--max-num-batched-tokens");
      }
      return true;
    }
    return false;
  };
  while (behind()) load.poll();
}

std::vector<std::int64_t> tokens_of(const LoadGenerator& load) {
  std::vector<std::int64_t> tokens;
  for (const RequestRecord& record : load.records()) tokens.push_back(record.tokens);
  return tokens;
}

void warm_up(LoadGenerator& load, const LatencyPlan& plan, const runtime::EngineOptions& options,
             PythonRandom& random) {
  LatencyPlan shorter = plan;
  shorter.steps = plan.warmup_steps;
  submit_batch(load, shorter, options, random);
  await_tokens(load, std::vector<std::int64_t>(static_cast<std::size_t>(plan.batch)), 1);
  await_tokens(load, tokens_of(load), plan.warmup_steps);
  load.stop();
}

}  // namespace

std::int64_t output_tokens_of(const LatencyPlan& plan, const runtime::EngineOptions& options) {
  const std::int64_t rows_for_prompts =
      std::max<std::int64_t>(options.max_num_batched_tokens - plan.batch, 1);
  const std::int64_t prompt_steps = plan.batch * plan.prompt_tokens / rows_for_prompts + 1;
  return plan.steps + 2 * prompt_steps + 16;
}

LatencyResult measure_latency(LoadGenerator& load, runtime::EngineClient& client,
                              const LatencyPlan& plan, const runtime::EngineOptions& options,
                              PythonRandom& random) {
  if (plan.warmup_steps > 0) warm_up(load, plan, options, random);
  LatencyResult result;
  result.plan = plan;
  submit_batch(load, plan, options, random);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(plan.batch));
  await_tokens(load, none, 1);
  result.prompts_s = seconds_since(load.records().front().submitted_ns);

  const std::vector<std::int64_t> before = tokens_of(load);
  const runtime::EngineStatistics statistics = client.statistics();
  // The sequence that all others had to wait for is the clock: it was at its first token just now.
  const auto begun_last = std::max_element(load.records().begin(), load.records().end(),
                                           [](const RequestRecord& a, const RequestRecord& b) {
                                             return a.first_ns < b.first_ns;
                                           }) -
                          load.records().begin();
  const auto clock = static_cast<std::size_t>(begun_last);
  const std::int64_t begin = load.records()[clock].last_ns;
  const auto gaps_before = static_cast<std::ptrdiff_t>(load.records()[clock].gaps_s.size());
  await_tokens(load, before, plan.steps);
  const std::int64_t end = load.records()[clock].last_ns;
  result.work = work_between(statistics, client.statistics());
  const std::vector<std::int64_t> after = tokens_of(load);

  result.seconds = static_cast<double>(end - begin) * 1e-9;
  result.steps = static_cast<double>(after[clock] - before[clock]);
  const std::vector<float>& gaps = load.records()[clock].gaps_s;
  result.step_s = summary_of({gaps.begin() + gaps_before, gaps.end()});
  std::vector<double> first_tokens;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double count = static_cast<double>(after[i] - before[i]);
    result.rows += count / result.steps;
    result.context +=
        static_cast<double>(plan.prompt_tokens) + static_cast<double>(before[i] + after[i]) / 2;
    first_tokens.push_back(load.records()[i].first_token_s());
  }
  result.context /= static_cast<double>(plan.batch);
  result.first_token_s = summary_of(std::move(first_tokens));
  load.stop();
  for (const RequestRecord& record : load.records()) result.cached_tokens += record.cached_tokens;
  return result;
}

}  // namespace nvllm::launcher
