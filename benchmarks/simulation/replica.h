// Replica: one engine, as run by nvllm-launch serve, in simulated time. The contents of every step,
// the blocks and the prefix cache come from the real Scheduler; only the durations of steps are
// from StepTime.
//
// As in runtime/engine, the next step is scheduled while the device runs the previous one: a
// request that arrives while step k runs and step k + 1 is enqueued has its first rows in step k +
// 2.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "benchmarks/simulation/step_time.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::simulation {

struct EngineModel {
  runtime::SchedulerLimits limits;
  bool async_scheduling = true;  // two steps in flight; otherwise one
  StepTime time = {};
};

class Replica {
 public:
  explicit Replica(const EngineModel& engine);

  // Submits a prompt with an answer of exactly max_tokens tokens. It is computed in a step that is
  // enqueued later.
  void submit(runtime::SequenceId id, std::vector<std::int32_t> prompt, std::int64_t max_tokens);
  // Enqueues as many steps as may be in flight; finish_step() also does this.
  void enqueue_steps(double now);
  // The end time of the oldest step in flight.
  std::optional<double> next_end() const;
  // The output of that step. Enqueues the next one.
  std::vector<runtime::SequenceOutput> finish_step();

  bool idle() const { return scheduler_.idle(); }
  double busy_s() const { return busy_s_; }
  const StepWork& work() const { return work_; }  // of completed steps
  runtime::SchedulerStatistics statistics() const { return scheduler_.statistics(); }

 private:
  struct Step {
    double end = 0, seconds = 0;
    StepWork work;
  };

  const EngineModel engine_;
  runtime::Scheduler scheduler_;
  SimulatedRank rank_;
  std::deque<Step> steps_;  // in flight
  double device_free_ = 0;  // when the last step in flight ends
  double busy_s_ = 0;
  StepWork work_;
};

}  // namespace nvllm::simulation
