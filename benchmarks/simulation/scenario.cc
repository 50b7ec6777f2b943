#include "benchmarks/simulation/scenario.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "benchmarks/simulation/simulation.h"

namespace nvllm::simulation {
namespace {

using Json = nlohmann::json;

// The fields of a JSON object, each read once; finish() refuses those that nobody read.
class Fields {
 public:
  Fields(const Json& object, std::string name) : object_(object), name_(std::move(name)) {
    if (!object.is_object()) fail(name_, " must be a JSON object");
  }

  template <class Value>
  void read(const char* field, Value& value) {
    read_.insert(field);
    const auto found = object_.find(field);
    if (found == object_.end()) return;
    try {
      if constexpr (std::is_same_v<Value, LengthRange>) {
        value = {.min = found->at(0), .max = found->at(1)};
      } else {
        value = found->get<Value>();
      }
    } catch (const Json::exception& error) {
      fail(name_, ".", field, " has the wrong type: ", error.what());
    }
  }
  const Json& object(const char* field) {
    read_.insert(field);
    static const Json kEmpty = Json::object();
    const auto found = object_.find(field);
    return found == object_.end() ? kEmpty : *found;
  }
  void finish() const {
    for (const auto& [field, value] : object_.items()) {
      if (read_.contains(field)) continue;
      std::string known;
      for (const std::string& name : read_) known += (known.empty() ? "" : ", ") + name;
      fail("unknown field ", name_, ".", field, "; known: ", known);
    }
  }

 private:
  const Json& object_;
  std::string name_;
  std::set<std::string> read_;
};

StepTime read_step_time(const Json& json) {
  Fields fields(json, "step_time_us");
  StepTime time;
  std::vector<std::pair<double, double>> decode;
  fields.read("decode", decode);
  fields.read("decode_context", time.decode_context);
  fields.read("prompt_step", time.prompt_step);
  fields.read("prompt_row", time.prompt_row);
  fields.read("prompt_pair", time.prompt_pair);
  fields.finish();
  for (const auto& [rows, us] : decode) {
    if (us < 0) fail("step_time_us.decode: ", us, " is below 0");
    if (!time.decode.empty() && rows <= time.decode.back().rows)
      fail("step_time_us.decode must be [rows, us] by rising numbers of rows");
    time.decode.push_back({.rows = rows, .seconds = us * 1e-6});
  }
  for (double* part :
       {&time.decode_context, &time.prompt_step, &time.prompt_row, &time.prompt_pair}) {
    if (*part < 0) fail("step_time_us: ", *part, " is below 0");
    *part *= 1e-6;
  }
  return time;
}

// The defaults are those of `nvllm-launch serve`.
EngineModel read_engine(const Json& json) {
  Fields fields(json, "engine");
  EngineModel engine{.limits = {.max_model_len = 40960,
                                .max_num_seqs = 256,
                                .max_num_batched_tokens = 4096,
                                .blocks = 40960,
                                .block_size = 16}};
  runtime::SchedulerLimits& limits = engine.limits;
  bool prefill_first = false;
  fields.read("max_model_len", limits.max_model_len);
  fields.read("max_num_seqs", limits.max_num_seqs);
  fields.read("max_num_batched_tokens", limits.max_num_batched_tokens);
  fields.read("block_size", limits.block_size);
  fields.read("blocks", limits.blocks);
  fields.read("host_blocks", limits.host_blocks);
  fields.read("prefix_caching", limits.prefix_caching);
  fields.read("prefill_first", prefill_first);
  fields.read("async_scheduling", engine.async_scheduling);
  fields.finish();
  for (const std::int64_t size :
       {limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens, limits.block_size,
        limits.blocks}) {
    if (size < 1) fail("engine: ", size, " must be at least 1");
  }
  if (limits.max_num_batched_tokens < limits.max_num_seqs) {
    fail("engine.max_num_batched_tokens ", limits.max_num_batched_tokens,
         " is less than max_num_seqs ", limits.max_num_seqs);
  }
  limits.max_logit_rows = limits.max_num_seqs;
  if (prefill_first) limits.scheduling = runtime::Scheduling::prefill_first;
  return engine;
}

RouterOptions read_router(const Json& json) {
  Fields fields(json, "router");
  RouterOptions router;
  std::string policy = "round_robin";
  fields.read("policy", policy);
  fields.read("replicas", router.replicas);
  fields.read("prefix_tokens", router.prefix_tokens);
  fields.read("balance", router.balance);
  fields.finish();
  router.policy = policy_named(policy);
  return router;
}

std::unique_ptr<Traffic> read_random(Fields& fields) {
  RandomTraffic traffic;
  fields.read("requests", traffic.requests);
  fields.read("input_len", traffic.input);
  fields.read("output_len", traffic.output);
  fields.read("seed", traffic.seed);
  fields.read("rate", traffic.rate);
  fields.read("concurrency", traffic.concurrency);
  fields.finish();
  return make_traffic(traffic);
}

std::unique_ptr<Traffic> read_conversations(Fields& fields) {
  Conversations traffic;
  fields.read("conversations", traffic.conversations);
  fields.read("rate", traffic.rate);
  fields.read("system_prompts", traffic.system_prompts);
  fields.read("system_tokens", traffic.system_tokens);
  fields.read("turns", traffic.turns);
  fields.read("input_len", traffic.input);
  fields.read("output_len", traffic.output);
  fields.read("think_s", traffic.think_s);
  fields.read("seed", traffic.seed);
  fields.finish();
  return make_traffic(traffic);
}

std::unique_ptr<Traffic> read_traffic(const Json& json) {
  Fields fields(json, "traffic");
  std::string kind = "random";
  fields.read("kind", kind);
  if (kind == "random") return read_random(fields);
  if (kind == "conversations") return read_conversations(fields);
  fail("unknown traffic.kind '", kind, "'; known: random, conversations");
}

nlohmann::ordered_json in_ms(const launcher::Summary& seconds) {
  return {{"mean", 1e3 * seconds.mean},
          {"p50", 1e3 * seconds.p50},
          {"p90", 1e3 * seconds.p90},
          {"p99", 1e3 * seconds.p99},
          {"max", 1e3 * seconds.max}};
}

nlohmann::ordered_json to_json(const StepWork& work) {
  return {{"steps", work.steps},
          {"decode_rows", work.decode_rows},
          {"decode_context", work.decode_context},
          {"prompt_tokens", work.prompt_tokens},
          {"prompt_pair", work.prompt_pairs},
          {"prompt_step", work.prompt_steps},
          {"prompt_row", work.prompt_step_rows}};
}

nlohmann::ordered_json to_json(const SimulationResult& result) {
  const SimulationSummary summary = summary_of(result);
  const auto per_s = [&](std::int64_t count) {
    return static_cast<double>(count) / summary.duration_s;
  };
  nlohmann::ordered_json json = {
      {"requests", summary.requests},
      {"duration_s", summary.duration_s},
      {"requests_per_s", per_s(summary.requests)},
      {"output_tokens_per_s", per_s(summary.output_tokens)},
      {"total_tokens_per_s", per_s(summary.prompt_tokens + summary.output_tokens)},
      {"prompt_tokens", summary.prompt_tokens},
      {"output_tokens", summary.output_tokens},
      {"cache_hit_share",
       static_cast<double>(summary.cached_tokens) / static_cast<double>(summary.prompt_tokens)},
      {"preemptions", summary.preemptions},
      {"ttft_ms", in_ms(summary.ttft_s)},
      {"tpot_ms", in_ms(summary.tpot_s)},
      {"e2el_ms", in_ms(summary.e2el_s)},
      {"largest_over_mean_requests", summary.requests_spread},
      {"largest_over_mean_busy", summary.busy_spread},
      {"mean_busy", summary.mean_busy},
      {"first_tokens_s", result.first_tokens_s},
      {"work", to_json(result.work)}};
  if (result.steady_s > 0) {
    json["steady_output_tokens_per_s"] =
        static_cast<double>(result.steady_tokens) / result.steady_s;
  }
  if (result.replicas.size() == 1)
    json["work_until_first_tokens"] = to_json(result.work_until_first_tokens);
  return json;
}

}  // namespace

nlohmann::ordered_json run_scenario(std::string_view scenario) {
  Json json;
  try {
    json = parse_json(scenario);
  } catch (const Json::exception& error) {
    fail("the scenario is no JSON: ", error.what());
  }
  Fields fields(json, "scenario");
  Simulation simulation;
  double front_end_ms = 0;
  fields.read("front_end_ms", front_end_ms);
  fields.read("warmup_s", simulation.warmup_s);
  simulation.front_end_s = front_end_ms * 1e-3;
  simulation.engine = read_engine(fields.object("engine"));
  simulation.engine.time = read_step_time(fields.object("step_time_us"));
  simulation.router = read_router(fields.object("router"));
  const std::unique_ptr<Traffic> traffic = read_traffic(fields.object("traffic"));
  fields.finish();
  return to_json(simulate(simulation, *traffic));
}

}  // namespace nvllm::simulation
