#include "launcher/bench/bench_session.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/trace_file.h"

namespace nvllm::launcher {
namespace {

void collect_trace(const Options& options, std::int64_t started_ns, EngineSession& session,
                   Trace& own) {
  std::vector<ProcessTrace> traces = session.client().take_trace();
  ProcessTrace launcher{.name = "launcher", .events = own.take(), .dropped = own.dropped()};
  traces.insert(traces.begin(), std::move(launcher));
  write_trace(options.profile, traces, started_ns);
}

}  // namespace

int run_bench(const Options& options, std::int64_t started_ns, BenchSubject& subject,
              const std::function<void(const BenchRun&)>& benchmark) {
  return run_bench(options, runtime::open_model(options.model), started_ns, subject, benchmark);
}

int run_bench(const Options& options, runtime::OpenModel model, std::int64_t started_ns,
              BenchSubject& subject, const std::function<void(const BenchRun&)>& benchmark) {
  subject.model = model.path;
  subject.dtype = model.dtype;
  subject.dummy = model.dummy;
  subject.engine = options.engine;
  try {
    EngineSession session(session_options(options), std::move(model));
    const model::ModelConfig& config = session.model().config;
    std::optional<std::string> error;
    try {
      subject.info = session.info();
      subject.cost = cost_of(config, subject.dtype, static_cast<int>(subject.info.ranks.size()));
      Trace trace;
      LoadGenerator load(session.client(), options.engine.profile ? &trace : nullptr);
      benchmark({session, load, config.vocab_size});
      if (options.engine.profile) collect_trace(options, started_ns, session, trace);
    } catch (const Error& failure) {
      error = subject.failure = failure.what();
    }
    return session.finish(error);
  } catch (const SessionFailed& failure) {
    subject.failure = failure.what();
    return failure.exit_code();
  }
}

SpeedQuestion speed_question(const Options& options, const BenchSubject& subject) {
  return {.device = subject.info.ranks.at(0).report.device,
          .ranks = static_cast<int>(subject.info.ranks.size()),
          .bandwidth_tb_s = options.bench.bandwidth_tb_s,
          .tflops = options.bench.tflops,
          .link_gb_s = options.bench.link_gb_s};
}

void add_floor(const Options& options, BenchSubject& subject) {
  subject.speed = device_speed(speed_question(options, subject));
}

}  // namespace nvllm::launcher
