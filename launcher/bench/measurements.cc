#include "launcher/bench/measurements.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "launcher/bench/workload.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kPollLimit = std::chrono::milliseconds(100);

void record_tokens(RequestRecord& record, std::int64_t tokens, std::int64_t now) {
  if (tokens == 0) return;
  if (record.tokens == 0) {
    record.first_ns = now;
  } else {
    const double gap = static_cast<double>(now - record.last_ns) * 1e-9;
    record.gaps_s.insert(record.gaps_s.end(), static_cast<std::size_t>(tokens),
                         static_cast<float>(gap / static_cast<double>(tokens)));
  }
  record.tokens += tokens;
  record.last_ns = now;
}

}  // namespace

void LoadGenerator::submit(const runtime::Request& request) {
  const Trace::Span span(trace_, "host", "submit");
  RequestRecord record;
  record.submitted_ns = now_ns();
  record.gaps_s.reserve(static_cast<std::size_t>(request.sampling.max_tokens.value_or(0)));
  records_.push_back(std::move(record));
  client_.submit(next_id_++, request);
}

void LoadGenerator::poll() {
  const std::vector<runtime::Update> updates = client_.poll(kPollLimit);
  if (on_poll_) on_poll_(total_);
  if (updates.empty()) return;
  const Trace::Span span(trace_, "host", "note updates");
  const std::int64_t now = now_ns();
  // The updates may be from several steps.
  std::map<RequestRecord*, std::int64_t> tokens;
  for (const runtime::Update& update : updates) {
    if (!update.error.empty()) fail("a request of the benchmark was refused: ", update.error);
    RequestRecord* record = record_of(update);
    if (record == nullptr) continue;
    tokens[record] += static_cast<std::int64_t>(update.tokens.size());
    for (const runtime::TokenLogprobs& token : update.logprobs)
      record->logprobs.push_back(token.chosen);
    if (update.finish == runtime::FinishReason::none) continue;
    record->finished = true;
    record->cached_tokens = update.cached_tokens;
    record->preemptions = update.preemptions;
  }
  for (const auto& [record, count] : tokens) record_tokens(*record, count, now);
}

// nullptr for a request submitted before clear().
RequestRecord* LoadGenerator::record_of(const runtime::Update& update) {
  const std::uint64_t after = next_id_ - update.request;  // 1: the newest
  return after <= records_.size() ? &records_[records_.size() - after] : nullptr;
}

void LoadGenerator::abort_all() {
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (!records_[i].finished) client_.abort(next_id_ - records_.size() + i);
  }
  while (client_.unfinished() > 0) poll();
}

void LoadGenerator::run(std::span<const runtime::Request> requests, std::int64_t at_once) {
  std::size_t next = 0;
  total_ = requests.size();
  while (next < requests.size() || client_.unfinished() > 0) {
    while (next < requests.size() && unfinished() < at_once) submit(requests[next++]);
    poll();
  }
  total_ = 0;
}

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
  constexpr std::int64_t kEndTogether = 8;  // answers that end in the same step
  PythonRandom random(0x5eed);
  Workload workload;
  for (std::int64_t i = 0; i < prompts; ++i) {
    // The last eight end one by one, the others in groups of eight.
    const std::int64_t output = 2 + (i < kEndTogether ? i : kEndTogether + i / kEndTogether);
    workload.requests.push_back(
        make_request(random_prompt(random, kPromptTokens, vocabulary), output));
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
    load.clear();
    load.run(warmup_workload(plan.warmup, plan.vocabulary).requests, plan.warmup);
    result.warmup_s = seconds_since(begin);
  }
  const runtime::EngineStatistics before = client.statistics();
  load.clear();
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
  result.ttft_s = summary_of(std::move(first_tokens));
  result.itl_s = summary_of(std::move(tokens));
  result.request_s = summary_of(std::move(requests));
  if (plan.logprobs_hash) result.logprobs_hash = hash_of_logprobs(load.records());
  return result;
}

std::uint64_t hash_of_logprobs(std::span<const RequestRecord> records) {
  std::vector<std::uint32_t> words;
  for (const RequestRecord& record : records) {
    words.push_back(static_cast<std::uint32_t>(record.logprobs.size()));
    for (const runtime::TokenLogprob& token : record.logprobs) {
      words.push_back(static_cast<std::uint32_t>(token.token));
      words.push_back(std::bit_cast<std::uint32_t>(token.logprob));
    }
  }
  return XXH64(words.data(), words.size() * sizeof(words.front()), 0);
}

std::string hex_digits(std::uint64_t hash) {
  std::array<char, 17> text;
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
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

namespace {

// Tokens that a sequence may generate beyond those needed, because they may arrive faster than they
// are polled. The requests are aborted once all needed tokens have arrived.
constexpr std::int64_t kSpareTokens = 2048;

void submit_batch(LoadGenerator& load, const LatencyPlan& plan,
                  const runtime::EngineOptions& options, PythonRandom& random) {
  const std::int64_t output_tokens = std::min(output_tokens_of(plan, options) + kSpareTokens,
                                              plan.max_model_len - plan.prompt_tokens);
  std::vector<runtime::Request> requests;
  for (std::int64_t i = 0; i < plan.batch; ++i) {
    requests.push_back(
        make_request(random_prompt(random, plan.prompt_tokens, plan.vocabulary), output_tokens));
  }
  load.clear();
  for (const runtime::Request& request : requests) load.submit(request);
}

// Waits until every sequence has `more` tokens beyond `since`.
void await_tokens(LoadGenerator& load, const std::vector<std::int64_t>& since, std::int64_t more) {
  const auto behind = [&] {
    for (std::size_t i = 0; i < since.size(); ++i) {
      const RequestRecord& record = load.records()[i];
      if (record.tokens >= since[i] + more) continue;
      if (record.finished) {
        fail("a sequence of the benchmark ended after ", record.tokens,
             " tokens, before the others had started; pass a larger --max-model-len or "
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

// Waits until no step is in flight. Requests are aborted before the last step that computes them
// has ended, and a prompt that is submitted then waits for that step.
void await_idle(runtime::EngineClient& client) {
  const auto busy = [&] {
    const runtime::SchedulerStatistics now = client.statistics().scheduler;
    return now.completed_rows < now.rows;
  };
  while (busy()) continue;
}

void warm_up(LoadGenerator& load, runtime::EngineClient& client, const LatencyPlan& plan,
             const runtime::EngineOptions& options, PythonRandom& random) {
  LatencyPlan shorter = plan;
  shorter.steps = plan.warmup_steps;
  submit_batch(load, shorter, options, random);
  await_tokens(load, std::vector<std::int64_t>(static_cast<std::size_t>(plan.batch)), 1);
  await_tokens(load, tokens_of(load), plan.warmup_steps);
  load.abort_all();
  await_idle(client);
}

}  // namespace

std::int64_t output_tokens_of(const LatencyPlan& plan, const runtime::EngineOptions& options) {
  const std::int64_t rows_for_prompts =
      std::max<std::int64_t>(options.max_num_batched_tokens - plan.batch, 1);
  const std::int64_t prompt_steps = plan.batch * plan.prompt_tokens / rows_for_prompts + 1;
  return plan.steps + 2 * prompt_steps + 16;
}

double prefill_floor(const LatencyResult& result, const ModelCost& cost, const DeviceSpeed& speed) {
  return prefill_floor(cost, speed, static_cast<double>(result.plan.batch),
                       static_cast<double>(result.plan.prompt_tokens));
}

LatencyResult measure_latency(LoadGenerator& load, runtime::EngineClient& client,
                              const LatencyPlan& plan, const runtime::EngineOptions& options,
                              PythonRandom& random) {
  if (plan.warmup_steps > 0) warm_up(load, client, plan, options, random);
  LatencyResult result;
  result.plan = plan;
  submit_batch(load, plan, options, random);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(plan.batch));
  await_tokens(load, none, 1);
  result.prefill_s = seconds_since(load.records().front().submitted_ns);

  const std::vector<std::int64_t> before = tokens_of(load);
  const runtime::EngineStatistics statistics = client.statistics();
  // The sequence that started last determines the time: it has just received its first token.
  const auto last_started = std::max_element(load.records().begin(), load.records().end(),
                                             [](const RequestRecord& a, const RequestRecord& b) {
                                               return a.first_ns < b.first_ns;
                                             }) -
                            load.records().begin();
  const auto clock = static_cast<std::size_t>(last_started);
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
  result.ttft_s = summary_of(std::move(first_tokens));
  load.abort_all();
  for (const RequestRecord& record : load.records()) result.cached_tokens += record.cached_tokens;
  return result;
}

}  // namespace nvllm::launcher
