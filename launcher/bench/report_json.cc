#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/bench/report.h"
#include "launcher/cli/program.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  return json_text(json, 2) + '\n';
}

Json milliseconds(const Summary& seconds) {
  return {{"mean", seconds.mean * 1e3},
          {"p50", seconds.p50 * 1e3},
          {"p90", seconds.p90 * 1e3},
          {"p99", seconds.p99 * 1e3},
          {"max", seconds.max * 1e3}};
}

Json engine_of(const BenchSubject& subject) {
  const runtime::EngineOptions& options = subject.engine;
  return {
      {"max_model_len", subject.info.max_model_len},
      {"max_num_seqs", options.max_num_seqs},
      {"max_num_batched_tokens", options.max_num_batched_tokens},
      {"block_size", subject.info.block_size},
      {"blocks", subject.info.blocks},
      {"host_blocks", subject.info.host_blocks},
      {"prefix_caching", subject.info.prefix_caching},
      {"scheduling", options.scheduling == runtime::Scheduling::mixed ? "mixed" : "prefill-first"},
      {"graphs", options.graphs},
      {"async_scheduling", options.async_scheduling},
      {"tune", name_of(options.tuning)},
      {"gemm_configs_known", subject.info.gemm_configs_known},
      {"gemm_configs_measured", subject.info.gemm_configs_measured},
      {"weight_bytes", subject.info.weight_bytes},
      {"kv_bytes_per_token", subject.info.kv_bytes_per_token}};
}

Json subject_of(const BenchSubject& subject) {
  const runtime::RankReport& first = subject.info.ranks.at(0).report;
  return {{"version", kVersion},
          {"benchmark", subject.benchmark},
          {"model", subject.model},
          {"load_format", subject.dummy ? "dummy" : "checkpoint"},
          {"dtype", name_of(subject.dtype)},
          {"device", first.device},
          {"ranks", subject.info.ranks.size()},
          {"stages", subject.stages},
          {"collectives", first.collectives},
          {"engine", engine_of(subject)}};
}

Json limits_of(const DeviceSpeed& speed) {
  return {{"tb_per_s", speed.bytes_per_second * 1e-12},
          {"tflops", speed.flops_per_second * 1e-12},
          {"attention_tflops", speed.attention_flops_per_second * 1e-12},
          {"source", speed.source}};
}

Json work_of(const EngineWork& work) {
  return {{"steps", work.steps},
          {"rows", work.rows},
          {"device_busy_s", work.device_busy_s},
          {"host_s", work.host_s},
          {"waiting_s", work.waiting_s},
          {"step_message_bytes", work.step_message_bytes},
          {"preemptions", work.preemptions},
          {"kv_bytes_to_host", work.kv_bytes_to_host},
          {"kv_bytes_to_device", work.kv_bytes_to_device},
          {"kv_bytes_by_host", work.kv_bytes_by_host}};
}

Json range_of(LengthRange range) {
  return {range.min, range.max};
}

Json run_of(const StartupRun& run) {
  Json json = {
      {"seconds", run.seconds()}, {"started_ns", run.started_ns}, {"stages", Json::array()}};
  if (run.exec_s) json["exec_s"] = *run.exec_s;
  for (const StartupStage& stage : run.stages) {
    json["stages"].push_back({{"name", stage.name}, {"after_s", stage.after_s}});
  }
  return json;
}

}  // namespace

namespace {

// null if the floor's assumption does not hold.
Json share_of_floor(const BenchSubject& subject, double share) {
  return floor_holds(subject.cost, subject.speed) ? Json(share) : Json();
}

}  // namespace

std::string format_json(const BenchSubject& subject, const ThroughputReport& report) {
  const ThroughputResult& result = report.result;
  const double output = static_cast<double>(result.output_tokens);
  const double all = output + static_cast<double>(result.prompt_tokens);
  Json json = subject_of(subject);
  json["workload"] = {{"prompts", result.prompts},
                      {"input_len", range_of(report.workload.prompt)},
                      {"output_len", range_of(report.workload.output)},
                      {"seed", report.workload.seed},
                      {"max_concurrency", report.at_once},
                      {"prompt_tokens", result.prompt_tokens},
                      {"output_tokens", result.output_tokens}};
  json["warmup"] = {{"prompts", result.warmup_prompts}, {"seconds", result.warmup_s}};
  json["seconds"] = result.seconds;
  json["output_tokens_per_s"] = output / result.seconds;
  json["total_tokens_per_s"] = all / result.seconds;
  json["requests_per_s"] = static_cast<double>(result.prompts) / result.seconds;
  json["first_token_ms"] = milliseconds(result.ttft_s);
  json["token_ms"] = milliseconds(result.itl_s);
  json["request_ms"] = milliseconds(result.request_s);
  json["cached_prompt_tokens"] = result.cached_tokens;
  if (result.logprobs_hash) json["logprobs_hash"] = hex_digits(*result.logprobs_hash);
  json["mean_batch"] = output / static_cast<double>(result.work.steps);
  json["work"] = work_of(result.work);
  json["floor"] = {{"seconds", report.floor_s},
                   {"of_floor", share_of_floor(subject, report.floor_s / result.seconds)},
                   {"limits", limits_of(subject.speed)}};
  return text_of(json);
}

std::string format_json(const BenchSubject& subject, const std::vector<LatencyResult>& results) {
  Json json = subject_of(subject);
  json["limits"] = limits_of(subject.speed);
  json["batches"] = Json::array();
  for (const LatencyResult& result : results) {
    const double rows = result.rows;
    const double floor = decode_floor(subject.cost, subject.speed, rows, result.context);
    const double prompts = prefill_floor(result, subject.cost, subject.speed);
    json["batches"].push_back(
        {{"batch", result.plan.batch},
         {"input_len", result.plan.prompt_tokens},
         {"warmup_steps", result.plan.warmup_steps},
         {"prompts_s", result.prefill_s},
         {"prompts_floor_s", prompts},
         {"prompts_of_floor", share_of_floor(subject, prompts / result.prefill_s)},
         {"first_token_ms", milliseconds(result.ttft_s)},
         {"steps", result.steps},
         {"mean_rows", rows},
         {"mean_context", result.context},
         {"mean_step_ms", result.mean_step_s() * 1e3},
         {"step_ms", milliseconds(result.step_s)},
         {"tokens_per_s", rows / result.mean_step_s()},
         {"floor_ms", floor * 1e3},
         {"of_floor", share_of_floor(subject, floor / result.mean_step_s())},
         {"cached_prompt_tokens", result.cached_tokens},
         {"work", work_of(result.work)}});
  }
  return text_of(json);
}

namespace {

Json floor_of(const BenchSubject& subject, const LongFloor& floor, double seconds) {
  return {{"compute_s", floor.compute_s},
          {"link_s", floor.link_s},
          {"of_floor", share_of_floor(subject, floor.seconds() / seconds)}};
}

Json mode_of(const BenchSubject& subject, const LongReport& report, const LongResult& mode) {
  if (!mode.error.empty()) return {{"kv_mode", name_of(mode.mode)}, {"error", mode.error}};
  const LongFloor prefill = prefill_floor(mode, subject.cost, subject.speed, report.link,
                                          subject.engine.max_num_batched_tokens);
  const LongFloor decode = decode_floor(mode, subject.cost, subject.speed, report.link);
  return {{"kv_mode", name_of(mode.mode)},
          {"blocks", mode.blocks},
          {"block_size", mode.block_size},
          {"host_blocks", mode.host_blocks},
          {"resident_blocks", mode.resident_blocks},
          {"prefill",
           {{"tokens", mode.prefill_tokens},
            {"seconds", mode.prefill_s},
            {"tokens_per_s", static_cast<double>(mode.prefill_tokens) / mode.prefill_s},
            {"floor", floor_of(subject, prefill, mode.prefill_s)},
            {"work", work_of(mode.prefill_work)}}},
          {"decode",
           {{"mean_context", mode.context},
            {"steps", mode.decode_steps},
            {"mean_step_ms", mode.mean_step_s() * 1e3},
            {"step_ms", milliseconds(mode.step_s)},
            {"tokens_per_s", 1 / mode.mean_step_s()},
            {"floor", floor_of(subject, decode, mode.mean_step_s())},
            {"work", work_of(mode.decode_work)}}}};
}

}  // namespace

std::string format_json(const BenchSubject& subject, const LongReport& report) {
  Json json = subject_of(subject);
  json["limits"] = limits_of(subject.speed);
  json["limits"]["link"] = {{"to_device_gb_per_s", report.link.to_device * 1e-9},
                            {"to_host_gb_per_s", report.link.to_host * 1e-9},
                            {"source", report.link.source}};
  json["output_len"] = report.plan.output_tokens;
  json["warmup_tokens"] = report.plan.warmup_tokens;
  json["one_prompt"] = report.plan.one_prompt;
  json["modes"] = Json::array();
  for (const LongResult& mode : report.modes) {
    json["modes"].push_back(mode_of(subject, report, mode));
  }
  return text_of(json);
}

std::string format_json(const BenchSubject& subject, const std::vector<StartupRun>& runs) {
  Json json = subject_of(subject);
  json.update(parse_ordered_json(format_json(runs)));
  return text_of(json);
}

std::string format_json(const std::vector<StartupRun>& runs) {
  std::vector<double> seconds;
  Json json;
  for (const StartupRun& run : runs) seconds.push_back(run.seconds());
  json["median_s"] = summary_of(seconds).p50;
  json["min_s"] = *std::min_element(seconds.begin(), seconds.end());
  json["runs"] = Json::array();
  for (const StartupRun& run : runs) json["runs"].push_back(run_of(run));
  return text_of(json);
}

StartupRun parse_startup_run(const std::string& text) {
  try {
    const Json one = parse_ordered_json(text).at("runs").at(0);
    StartupRun run{.started_ns = one.at("started_ns"), .exec_s = std::nullopt, .stages = {}};
    for (const Json& stage : one.at("stages")) {
      run.stages.push_back({stage.at("name"), stage.at("after_s")});
    }
    return run;
  } catch (const Json::exception& error) {
    fail("a start's report cannot be read: ", error.what());
  }
}

}  // namespace nvllm::launcher
