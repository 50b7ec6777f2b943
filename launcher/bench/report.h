// Formats the reports of the benchmarks, as tables and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/bench/floor.h"
#include "launcher/bench/long_context.h"
#include "launcher/bench/measurements.h"
#include "launcher/cli/options.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/model/open_model.h"

namespace nvllm::launcher {

// What was measured, and the hardware.
struct BenchSubject {
  std::string benchmark;  // "throughput"
  std::string model = {};
  DType dtype = DType::bf16;
  bool dummy = false;
  ModelCost cost = {};
  DeviceSpeed speed = {};
  runtime::EngineOptions engine = {};
  runtime::EngineInfo info = {};
  int stages = 1;            // pipeline stages, which divide the ranks
  int ranks_here = 1;        // on this box, of those in `info`
  std::string failure = {};  // why the run failed; empty: it succeeded
};

struct ThroughputReport {
  WorkloadOptions workload;
  std::int64_t at_once = 0;
  ThroughputResult result;
  double floor_s = 0;
};
std::string format_table(const BenchSubject& subject, const ThroughputReport& report);
std::string format_json(const BenchSubject& subject, const ThroughputReport& report);

std::string format_table(const BenchSubject& subject, const std::vector<LatencyResult>& results);
std::string format_json(const BenchSubject& subject, const std::vector<LatencyResult>& results);

struct LongReport {
  LongPlan plan;
  LinkSpeed link;
  std::vector<LongResult> modes;
};
std::string format_table(const BenchSubject& subject, const LongReport& report);
std::string format_json(const BenchSubject& subject, const LongReport& report);

// When the last rank had finished a stage, in seconds after the start.
struct StartupStage {
  std::string name;
  double after_s = 0;
};

struct StartupRun {
  std::int64_t started_ns = 0;   // start of the program
  std::optional<double> exec_s;  // from fork() to the start of the program; absent: not measured
  std::vector<StartupStage> stages;

  double seconds() const { return exec_s.value_or(0) + stages.back().after_s; }
};
std::string format_table(const BenchSubject& subject, const std::vector<StartupRun>& runs);
std::string format_json(const BenchSubject& subject, const std::vector<StartupRun>& runs);
std::string format_json(
    const std::vector<StartupRun>& runs);  // the part that differs between starts
// Parses the report of one run printed by format_json().
StartupRun parse_startup_run(const std::string& json);

}  // namespace nvllm::launcher
