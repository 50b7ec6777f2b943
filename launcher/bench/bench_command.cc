#include "launcher/bench/command.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/bench/bench_session.h"
#include "launcher/bench/device_speed.h"
#include "launcher/bench/long_context.h"
#include "launcher/bench/report.h"
#include "launcher/bench/starts.h"
#include "launcher/exit_code.h"
#include "launcher/worker_run.h"
#include "runtime/memory_plan.h"
#include "runtime/open_model.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kLatencyPrompt = 1024;
constexpr std::int64_t kLatencySteps = 256;
constexpr std::int64_t kLatencyWarmup = 16;
constexpr std::int64_t kStartupPrompt = 16;
constexpr std::int64_t kLongWarmup = 4096;

template <typename Report>
int print(const Options& options, const BenchSubject& subject, const Report& report) {
  write_results(options.json ? format_json(subject, report) : format_table(subject, report));
  return kExitFine;
}

// A line about how far it is, on standard error.
void say(EngineSession& session, const std::string& text) {
  if (!log_enabled(LogLevel::info)) return;
  session.workers().console().print(format_log_line("launcher", LogLevel::info, text));
}

LatencyPlan latency_plan(const BenchOptions& bench, const BenchRun& run) {
  return {.batch = 1,
          .prompt_tokens = bench.input ? bench.input->most : kLatencyPrompt,
          .steps = bench.output ? bench.output->most : kLatencySteps,
          .warmup_steps = bench.warmup.value_or(kLatencyWarmup),
          .vocabulary = run.vocabulary,
          .max_model_len = run.session.info().max_model_len};
}

// Whether its longest sequences have room, before anything is measured.
void check_room(const LatencyPlan& plan, const Options& options, const runtime::EngineInfo& info) {
  const std::int64_t length = plan.prompt_tokens + output_tokens_of(plan, options.engine);
  if (length > info.max_model_len) {
    fail("--input-len ", plan.prompt_tokens, " and ", plan.steps, " steps of a batch of ",
         plan.batch, " take up to ", length, " tokens of a sequence, and max_model_len is ",
         info.max_model_len, "; pass a smaller --input-len, --output-len or --batch-size");
  }
}

}  // namespace

int run_bench_throughput(const Options& options, std::int64_t started_ns) {
  const BenchOptions& bench = options.bench;
  BenchSubject subject{.benchmark = "throughput"};
  ThroughputReport report;
  ThroughputPlan plan;
  const int exit_code = run_bench(options, started_ns, subject, [&](const BenchRun& run) {
    report.workload = {.sequences = bench.prompts, .seed = bench.dataset_seed};
    if (bench.input) report.workload.prompt = *bench.input;
    if (bench.output) report.workload.output = *bench.output;
    report.workload.vocabulary = run.vocabulary;
    report.at_once = std::min(bench.max_concurrency.value_or(bench.prompts), bench.prompts);
    const std::int64_t running = std::min(report.at_once, options.engine.max_num_seqs);
    plan = {.workload = make_workload(report.workload),
            .at_once = report.at_once,
            .warmup = bench.warmup.value_or(running),
            .vocabulary = run.vocabulary};
    report.result = measure_throughput(run.load, run.session.client(), plan);
  });
  if (exit_code != kExitFine) return exit_code;
  add_floor(options, subject);
  report.floor_s = floor_of(plan.workload, subject.cost, subject.speed,
                            std::min(report.at_once, options.engine.max_num_seqs));
  return print(options, subject, report);
}

int run_bench_latency(const Options& options, std::int64_t started_ns) {
  BenchSubject subject{.benchmark = "latency"};
  std::vector<LatencyResult> results;
  const int exit_code = run_bench(options, started_ns, subject, [&](const BenchRun& run) {
    PythonRandom random(options.bench.dataset_seed);
    std::vector<LatencyPlan> plans;
    for (const std::int64_t batch : options.bench.batch_sizes) {
      plans.push_back(latency_plan(options.bench, run));
      plans.back().batch = batch;
      check_room(plans.back(), options, subject.info);
    }
    for (const LatencyPlan& plan : plans) {
      results.push_back(
          measure_latency(run.load, run.session.client(), plan, options.engine, random));
      say(run.session,
          str("batch ", plan.batch, ": ", results.back().mean_step_s() * 1e3, " ms a step"));
    }
  });
  if (exit_code != kExitFine) return exit_code;
  add_floor(options, subject);
  return print(options, subject, results);
}

int run_bench_long(const Options& options, std::int64_t started_ns) {
  const BenchOptions& bench = options.bench;
  BenchSubject subject{.benchmark = "long"};
  LongReport report;
  int last_failure = kExitFine;
  std::size_t measured = 0;
  for (const LongMode mode : bench.modes) {
    Options of_mode = options;
    of_mode.engine = options_of_mode(options.engine, mode);
    BenchSubject one{.benchmark = subject.benchmark};
    LongResult result;
    runtime::OpenModel model = runtime::open_model(options.model);
    // A length that the model cannot have is refused here, before the first mode, and not by each.
    runtime::wanted_model_len(options.engine, model.config.max_position_embeddings);
    const auto benchmark = [&](const BenchRun& run) {
      report.plan = {.max_model_len = one.info.max_model_len,
                     .output_tokens = bench.output ? bench.output->most : kLongOutput,
                     .warmup_tokens = bench.warmup.value_or(kLongWarmup),
                     .vocabulary = run.vocabulary,
                     .one_prompt = bench.one_prompt};
      PythonRandom random(bench.dataset_seed);
      result = measure_long(run.load, run.session.client(), report.plan, random);
      say(run.session, str(name_of(mode), ": ", result.prefill_s, " s for the prompt, ",
                           result.mean_step_s() * 1e3, " ms a token"));
    };
    const int exit_code = run_bench(of_mode, std::move(model), started_ns, one, benchmark);
    if (exit_code != kExitFine && exit_code != kExitFailed) return exit_code;
    if (exit_code == kExitFine) {
      ++measured;
      result.blocks = one.info.blocks;
      result.block_size = one.info.block_size;
      result.host_blocks = one.info.host_blocks;
      result.resident_blocks = one.info.resident_blocks;
      subject = one;
    } else {
      last_failure = exit_code;
      result.error = one.failure;
    }
    result.mode = mode;
    report.modes.push_back(result);
  }
  if (measured == 0) return last_failure;
  add_floor(options, subject);
  report.link = link_speed(speed_question(options, subject));
  return print(options, subject, report);
}

int run_bench_startup(const Options& options, std::int64_t started_ns) {
  if (options.bench.repeat > 1) return run_starts(options);
  BenchSubject subject{.benchmark = "startup"};
  std::vector<StartupRun> runs(1);
  const int exit_code = run_bench(options, started_ns, subject, [&](const BenchRun& run) {
    const std::int64_t length = options.bench.input ? options.bench.input->most : kStartupPrompt;
    WorkloadOptions one{.sequences = 1, .prompt = {length, length}, .output = {1, 1}};
    one.seed = options.bench.dataset_seed;
    one.vocabulary = run.vocabulary;
    run.load.begin();
    run.load.run(make_workload(one).requests, 1);
    const RequestRecord& record = run.load.records().front();
    runs.front() = {
        .started_ns = started_ns,
        .exec_s = std::nullopt,
        .stages = startup_stages(started_ns, subject.info, record.submitted_ns, record.first_ns)};
  });
  if (exit_code != kExitFine) return exit_code;
  return print(options, subject, runs);
}

}  // namespace nvllm::launcher
