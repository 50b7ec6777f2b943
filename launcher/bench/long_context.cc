#include "launcher/bench/long_context.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "launcher/bench/workload.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kWarmupOutput = 16;

runtime::Request request_of(std::int64_t prompt_tokens, std::int64_t output_tokens,
                            std::int64_t vocabulary, PythonRandom& random) {
  return make_request(random_prompt(random, prompt_tokens, vocabulary), output_tokens);
}

// Submits a request and waits for its first token.
const RequestRecord& await_first_token(LoadGenerator& load, const runtime::Request& request) {
  load.clear();
  load.submit(request);
  while (load.records().front().first_ns == 0) load.poll();
  return load.records().front();
}

void finish(LoadGenerator& load) {
  while (load.unfinished() > 0) load.poll();
}

bool in_host_memory(LongMode mode) {
  return in_chunks(mode) || mode == LongMode::layerwise;
}

// Whether every block stays on the device.
bool all_stay(const LongResult& result) {
  return result.blocks > 0 && result.resident_blocks >= result.blocks;
}

// How many of a sequence's first `tokens` tokens do not stay on the device.
double not_resident(const LongResult& result, double tokens) {
  return std::max(tokens - static_cast<double>(result.resident_blocks * result.block_size), 0.0);
}

}  // namespace

LongResult measure_long(LoadGenerator& load, runtime::EngineClient& client, const LongPlan& plan,
                        PythonRandom& random) {
  const std::int64_t decode_prompt = plan.max_model_len - plan.output_tokens;
  if (decode_prompt < 1) {
    fail("--output-len ", plan.output_tokens, " leaves no token for a prompt in max_model_len ",
         plan.max_model_len, "; pass a smaller one");
  }
  if (plan.warmup_tokens > 0) {
    const std::int64_t tokens = std::min(plan.warmup_tokens, plan.max_model_len - 1);
    const std::int64_t output = std::min(kWarmupOutput, plan.max_model_len - tokens);
    await_first_token(load, request_of(tokens, output, plan.vocabulary, random));
    finish(load);
  }
  LongResult result{.prefill_tokens = plan.one_prompt ? decode_prompt : plan.max_model_len - 1};
  runtime::EngineStatistics before = client.statistics();
  const auto prompt_done = [&](double first_token_s) {
    const runtime::EngineStatistics now = client.statistics();
    result.prefill_s = first_token_s;
    result.prefill_work = work_between(before, now);
    before = now;
  };
  if (!plan.one_prompt) {
    const auto prompt = request_of(result.prefill_tokens, 1, plan.vocabulary, random);
    const double first_token_s = await_first_token(load, prompt).first_token_s();
    finish(load);
    prompt_done(first_token_s);
  }
  const auto prompt = request_of(decode_prompt, plan.output_tokens, plan.vocabulary, random);
  const double first_token_s = await_first_token(load, prompt).first_token_s();
  if (plan.one_prompt) prompt_done(first_token_s);
  before = client.statistics();
  finish(load);
  result.decode_work = work_between(before, client.statistics());
  const RequestRecord& record = load.records().front();
  result.context = decode_prompt + (plan.output_tokens + 1) / 2;
  result.decode_steps = static_cast<double>(std::max<std::int64_t>(record.tokens - 1, 1));
  result.decode_s = static_cast<double>(record.last_ns - record.first_ns) * 1e-9;
  result.step_s = summary_of({record.gaps_s.begin(), record.gaps_s.end()});
  return result;
}

LongFloor prefill_floor(const LongResult& result, const ModelCost& cost, const DeviceSpeed& speed,
                        const LinkSpeed& link, std::int64_t step_tokens) {
  const auto tokens = static_cast<double>(result.prefill_tokens);
  LongFloor floor{.compute_s = prefill_floor(cost, speed, 1, tokens)};
  if (!in_host_memory(result.mode) || all_stay(result)) return floor;
  floor.link_s = tokens * cost.kv_bytes / link.to_host;
  if (in_chunks(result.mode)) {
    double read = 0;
    for (std::int64_t begin = 0; begin < result.prefill_tokens; begin += step_tokens) {
      read += not_resident(result, static_cast<double>(begin));
    }
    floor.link_s = std::max(floor.link_s, read * cost.kv_bytes / link.to_device);
  }
  return floor;
}

LongFloor decode_floor(const LongResult& result, const ModelCost& cost, const DeviceSpeed& speed,
                       const LinkSpeed& link) {
  const auto context = static_cast<double>(result.context);
  LongFloor floor{.compute_s = decode_floor(cost, speed, 1, context)};
  if (in_host_memory(result.mode)) {
    floor.link_s = not_resident(result, context) * cost.kv_bytes / link.to_device;
  }
  return floor;
}

}  // namespace nvllm::launcher
