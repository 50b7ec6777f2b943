// What the benchmarks print: their reports, as tables and as JSON, and a progress line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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

// Formats the line that shows a benchmark's progress on a terminal. It prints nothing.
class BenchProgress {
 public:
  explicit BenchProgress(std::int64_t started_ns) : shown_ns_(started_ns) {}

  // The next line, which replaces the last one on the terminal; empty if it is not due. total: the
  // number of requests; 0: that of the records.
  std::string line(std::span<const RequestRecord> records, std::size_t total, std::int64_t now_ns);
  // The text that removes the line from the terminal.
  std::string clear();

 private:
  std::int64_t shown_ns_;
  bool shown_ = false;
};

}  // namespace nvllm::launcher
