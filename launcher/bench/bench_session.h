// What all benchmarks have in common: a session with an engine, the trace, and what the floor needs.
#pragma once

#include <cstdint>
#include <functional>

#include "launcher/bench/device_speed.h"
#include "launcher/bench/load_generator.h"
#include "launcher/bench/report.h"
#include "launcher/engine_session.h"
#include "launcher/options.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {

struct BenchRun {
  EngineSession& session;
  LoadGenerator& load;
  std::int64_t vocabulary = 0;  // of the model
};

// Runs a benchmark between the start and the end of an engine; what it throws is why the run failed.
// Fills in what is known of the subject by then, and writes the trace if one was asked for. Returns the
// exit code.
int run_bench(const Options& options, std::int64_t started_ns, BenchSubject& subject,
              const std::function<void(const BenchRun&)>& benchmark);
// The same with the options' model, which is open already.
int run_bench(const Options& options, runtime::OpenModel model, std::int64_t started_ns,
              BenchSubject& subject, const std::function<void(const BenchRun&)>& benchmark);

// The question for what it could do.
SpeedQuestion speed_question(const Options& options, const BenchSubject& subject);

// What the subject's devices could do. After run_bench().
void add_floor(const Options& options, BenchSubject& subject);

}  // namespace nvllm::launcher
