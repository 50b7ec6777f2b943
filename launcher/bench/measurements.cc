#include "launcher/bench/throughput.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "launcher/bench/python_random.h"

namespace nvllm::launcher {

EngineWork work_between(const runtime::EngineStatistics& before,
                        const runtime::EngineStatistics& after) {
  EngineWork work{.steps = after.scheduler.steps - before.scheduler.steps,
                  .rows = after.scheduler.rows - before.scheduler.rows,
                  .generated_tokens = after.generated_tokens - before.generated_tokens,
                  .preemptions = after.scheduler.preemptions - before.scheduler.preemptions,
                  .kv_bytes_to_host = after.kv_bytes_to_host - before.kv_bytes_to_host,
                  .kv_bytes_to_device = after.kv_bytes_to_device - before.kv_bytes_to_device,
                  .kv_bytes_by_host = after.kv_bytes_by_host - before.kv_bytes_by_host,
                  .device_busy_s = after.device_busy_s - before.device_busy_s,
                  .host_s = after.host_s - before.host_s,
                  .waiting_s = after.waiting_s - before.waiting_s};
  if (work.steps > 0) {
    work.step_message_bytes =
        static_cast<double>(after.step_message_bytes - before.step_message_bytes) /
        static_cast<double>(work.steps);
  }
  return work;
}

Workload warmup_workload(std::int64_t prompts, std::int64_t vocabulary) {
  constexpr std::int64_t kPromptTokens = 16;
  constexpr std::int64_t kEndTogether = 8;  // answers that end with the same step
  PythonRandom random(0x5eed);
  Workload workload;
  for (std::int64_t i = 0; i < prompts; ++i) {
    std::vector<std::int32_t> prompt;
    for (std::int64_t k = 0; k < kPromptTokens; ++k) {
      prompt.push_back(static_cast<std::int32_t>(random.randint(0, vocabulary - 1)));
    }
    // The last eight end one by one.
    const std::int64_t output = 2 + (i < kEndTogether ? i : kEndTogether + i / kEndTogether);
    workload.requests.push_back(make_request(std::move(prompt), output));
    workload.prompt_tokens += kPromptTokens;
    workload.output_tokens += output;
  }
  return workload;
}

ThroughputResult measure_throughput(LoadGenerator& load, runtime::EngineClient& client,
                                    const ThroughputPlan& plan) {
  ThroughputResult result{.warmup_prompts = plan.warmup};
  if (plan.warmup > 0) {
    const std::int64_t begin = now_ns();
    load.begin();
    load.run(warmup_workload(plan.warmup, plan.vocabulary).requests, plan.warmup);
    result.warmup_s = seconds_since(begin);
  }
  const runtime::EngineStatistics before = client.statistics();
  load.begin();
  load.run(plan.workload.requests, plan.at_once);
  result.work = work_between(before, client.statistics());

  std::int64_t last = 0;
  std::vector<double> first_tokens, tokens, requests;
  for (const RequestRecord& record : load.records()) {
    last = std::max(last, record.last_ns);
    first_tokens.push_back(record.first_token_s());
    tokens.insert(tokens.end(), record.gaps_s.begin(), record.gaps_s.end());
    requests.push_back(static_cast<double>(record.last_ns - record.submitted_ns) * 1e-9);
    result.output_tokens += record.tokens;
    result.cached_tokens += record.cached_tokens;
  }
  result.seconds = static_cast<double>(last - load.records().front().submitted_ns) * 1e-9;
  result.prompts = static_cast<std::int64_t>(load.records().size());
  result.prompt_tokens = plan.workload.prompt_tokens;
  result.first_token_s = summary_of(std::move(first_tokens));
  result.token_s = summary_of(std::move(tokens));
  result.request_s = summary_of(std::move(requests));
  return result;
}

double floor_of(const Workload& workload, const ModelCost& cost, const DeviceSpeed& speed,
                std::int64_t at_once) {
  std::vector<SequenceLength> lengths;
  for (const runtime::Request& request : workload.requests) {
    lengths.push_back(
        {static_cast<std::int64_t>(request.prompt.size()), *request.sampling.max_tokens});
  }
  return workload_floor(cost, speed, lengths, at_once);
}

}  // namespace nvllm::launcher
