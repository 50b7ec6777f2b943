// The commands bench throughput, latency, long and startup.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "launcher/bench/device_speed.h"
#include "launcher/bench/long_context.h"
#include "launcher/bench/measurements.h"
#include "launcher/bench/report.h"
#include "launcher/bench/startup.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/session/engine_session.h"
#include "launcher/session/text_io.h"
#include "launcher/session/trace_file.h"
#include "runtime/memory/memory_plan.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {
namespace {

// The objects that a benchmark uses.
struct BenchRun {
  EngineSession& session;
  LoadGenerator& load;
  BenchProgress& progress;
  std::int64_t vocabulary = 0;  // of the model
};

// Shows the benchmark's progress on a terminal.
void show_progress(EngineSession& session, LoadGenerator& load, BenchProgress& progress) {
  if (!log_enabled(LogLevel::info) || ::isatty(STDERR_FILENO) != 1) return;
  load.on_poll([&](std::size_t total) {
    const std::string line = progress.line(load.records(), total, now_ns());
    if (!line.empty()) session.workers().console().draw(line);
  });
}

// Counts the weights as the ranks store them.
ModelCost session_cost(const runtime::OpenModel& model, const runtime::EngineOptions& engine,
                       const runtime::EngineInfo& info, int stages) {
  const bool fp8 = engine.kv_cache_dtype == runtime::KvCacheDtype::fp8_e4m3;
  const int ranks = static_cast<int>(info.ranks.size()) / stages;
  ModelCost cost = cost_of(model.config, model.dtype, fp8 ? DType::u8 : model.dtype, ranks);
  count_weights(cost, runtime::describe_model(model, ranks));
  return cost_in_stages(cost, stages);
}

// Runs a benchmark within an engine session; if it throws, that is why the run has failed. Fills in
// the subject as far as it is known by then, and writes the trace if --profile requests one.
// Returns the exit code.
int run_bench(const Options& options, runtime::OpenModel model, std::int64_t started_ns,
              BenchSubject& subject, const std::function<void(const BenchRun&)>& benchmark) {
  subject.model = model.path;
  subject.dtype = model.dtype;
  subject.dummy = model.dummy;
  subject.engine = options.engine;
  subject.stages = options.group.stages;
  try {
    EngineSession session(session_options(options), std::move(model));
    const model::ModelConfig& config = session.model().config;
    std::optional<std::string> error;
    try {
      subject.info = session.info();
      const ipc::Group& group = session.workers().member().group();
      subject.ranks_here = group.ranks_of(group.box());
      Trace trace;
      LoadGenerator load(session.client(), options.engine.profile ? &trace : nullptr);
      BenchProgress progress(now_ns());
      show_progress(session, load, progress);
      benchmark({session, load, progress, config.vocab_size});
      if (const std::string line = progress.clear(); !line.empty()) {
        session.workers().console().draw(line);
      }
      subject.cost = session_cost(session.model(), options.engine, subject.info, subject.stages);
      if (options.engine.profile) write_profile(options.profile, session, trace, started_ns);
    } catch (const Error& failure) {
      error = subject.failure = failure.what();
    }
    return session.finish(error);
  } catch (const SessionFailed& failure) {
    subject.failure = failure.what();
    return failure.exit_code();
  }
}

SpeedOptions speed_options(const Options& options, const BenchSubject& subject) {
  return {.device = subject.info.ranks.at(0).report.device,
          .ranks = subject.ranks_here,
          .bandwidth_tb_s = options.bench.bandwidth_tb_s,
          .tflops = options.bench.tflops,
          .link_gb_s = options.bench.link_gb_s};
}

// Adds the speeds of the subject's devices. Call it after run_bench().
void add_floor(const Options& options, BenchSubject& subject) {
  subject.speed = device_speed(speed_options(options, subject));
}

constexpr std::int64_t kStartupPrompt = 16;
constexpr std::int64_t kLongWarmup = 4096;

template <typename Report>
int print(const Options& options, const BenchSubject& subject, const Report& report) {
  write_results(options.json ? format_json(subject, report) : format_table(subject, report));
  return kExitFine;
}

// Logs a measurement to standard error.
void log(const BenchRun& run, const std::string& text) {
  if (!log_enabled(LogLevel::info)) return;
  Console& console = run.session.workers().console();
  console.draw(run.progress.clear());
  console.print(format_log_line("launcher", LogLevel::info, text));
}

LatencyPlan latency_plan(const BenchOptions& bench, const BenchRun& run, std::int64_t batch) {
  LatencyPlan plan{.batch = batch,
                   .vocabulary = run.vocabulary,
                   .max_model_len = run.session.info().max_model_len};
  if (bench.input) plan.prompt_tokens = bench.input->max;
  if (bench.output) plan.steps = bench.output->max;
  plan.warmup_steps = bench.warmup.value_or(plan.warmup_steps);
  return plan;
}

// Checks, before measuring, that the longest sequences fit into max_model_len.
void check_length(const LatencyPlan& plan, const Options& options,
                  const runtime::EngineInfo& info) {
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
  const int exit_code = run_bench(
      options, runtime::open_model(options.model), started_ns, subject, [&](const BenchRun& run) {
        report.workload = {.sequences = bench.prompts, .seed = bench.dataset_seed};
        if (bench.input) report.workload.prompt = *bench.input;
        if (bench.output) report.workload.output = *bench.output;
        report.workload.vocabulary = run.vocabulary;
        report.workload.logprobs = bench.logprobs_hash;
        report.at_once = std::min(bench.max_concurrency.value_or(bench.prompts), bench.prompts);
        const std::int64_t running = std::min(report.at_once, options.engine.max_num_seqs);
        plan = {.workload = make_workload(report.workload),
                .at_once = report.at_once,
                .warmup = bench.warmup.value_or(running),
                .vocabulary = run.vocabulary,
                .logprobs_hash = bench.logprobs_hash};
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
  const int exit_code = run_bench(
      options, runtime::open_model(options.model), started_ns, subject, [&](const BenchRun& run) {
        PythonRandom random(options.bench.dataset_seed);
        std::vector<LatencyPlan> plans;
        for (const std::int64_t batch : options.bench.batch_sizes) {
          plans.push_back(latency_plan(options.bench, run, batch));
          check_length(plans.back(), options, subject.info);
        }
        for (const LatencyPlan& plan : plans) {
          results.push_back(
              measure_latency(run.load, run.session.client(), plan, options.engine, random));
          log(run,
              str("batch ", plan.batch, ": ", results.back().mean_step_s() * 1e3, " ms a step"));
        }
      });
  if (exit_code != kExitFine) return exit_code;
  add_floor(options, subject);
  return print(options, subject, results);
}

namespace {

// The engine options of all modes: without --max-model-len the default, or the model's limit
// if that is less. Rejects lengths that the model does not support here, before the first mode,
// rather than in each mode.
runtime::EngineOptions long_engine(const Options& options) {
  runtime::EngineOptions engine = options.engine;
  const std::int64_t limit = runtime::open_model(options.model).config.max_model_len();
  runtime::wanted_model_len(engine, limit);
  const std::int64_t wanted = *options_of_mode(engine, LongMode::paged).max_model_len;
  engine.max_model_len = std::min(wanted, limit);
  const std::int64_t output = options.bench.output ? options.bench.output->max : kLongOutput;
  if (output >= *engine.max_model_len) {
    refuse("--output-len ", output, ": leaves no room for a prompt in the model's limit of ", limit,
           " tokens; pass a smaller one");
  }
  if (limit < wanted) {
    log_info("max_model_len is ", limit, ", the model's limit, and not ", wanted);
  }
  return engine;
}

}  // namespace

int run_bench_long(const Options& options, std::int64_t started_ns) {
  const BenchOptions& bench = options.bench;
  const runtime::EngineOptions engine = long_engine(options);
  BenchSubject subject{.benchmark = "long"};
  LongReport report;
  int last_failure = kExitFine;
  std::size_t measured = 0;
  for (const LongMode mode : bench.modes) {
    Options of_mode = options;
    of_mode.engine = options_of_mode(engine, mode);
    BenchSubject one{.benchmark = subject.benchmark};
    LongResult result;
    runtime::OpenModel model = runtime::open_model(options.model);
    const auto benchmark = [&](const BenchRun& run) {
      report.plan = {.max_model_len = one.info.max_model_len,
                     .output_tokens = bench.output ? bench.output->max : kLongOutput,
                     .warmup_tokens = bench.warmup.value_or(kLongWarmup),
                     .vocabulary = run.vocabulary,
                     .one_prompt = bench.one_prompt};
      PythonRandom random(bench.dataset_seed);
      result = measure_long(run.load, run.session.client(), report.plan, random);
      log(run, str(name_of(mode), ": ", result.prefill_s, " s for the prompt, ",
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
  report.link = link_speed(speed_options(options, subject));
  return print(options, subject, report);
}

int run_bench_startup(const Options& options, std::int64_t started_ns) {
  if (options.bench.repeat > 1) return run_starts(options);
  BenchSubject subject{.benchmark = "startup"};
  std::vector<StartupRun> runs(1);
  const int exit_code = run_bench(
      options, runtime::open_model(options.model), started_ns, subject, [&](const BenchRun& run) {
        const std::int64_t length = options.bench.input ? options.bench.input->max : kStartupPrompt;
        WorkloadOptions one{.sequences = 1, .prompt = {length, length}, .output = {1, 1}};
        one.seed = options.bench.dataset_seed;
        one.vocabulary = run.vocabulary;
        run.load.clear();
        run.load.run(make_workload(one).requests, 1);
        const RequestRecord& record = run.load.records().front();
        runs.front() = {.started_ns = started_ns,
                        .exec_s = std::nullopt,
                        .stages = startup_stages(started_ns, subject.info, record.submitted_ns,
                                                 record.first_ns)};
      });
  if (exit_code != kExitFine) return exit_code;
  return print(options, subject, runs);
}

}  // namespace nvllm::launcher
