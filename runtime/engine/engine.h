// Engine: rank 0's loop. It receives requests from the front end, has the scheduler choose each
// step, broadcasts the step to all ranks, and pushes the new tokens to the front end. The next step
// is scheduled and enqueued while the device still runs the previous one.
//
// The front end (engine_client.h) calls through ipc::RequestClient:
//   open(EngineOptions) -> EngineInfo     once; waits for the weights and sizes the cache
//   add(part of the request stream), statistics() -> EngineStatistics, take_trace()
// The engine pushes "load_state" while it opens, then "updates" for each step: a vector<Update>,
// which is empty if the step only processed a chunk of a prompt, and the scheduler's statistics.
//
// engine_setup.cc has how it opens, StepPacer the size of its prefill steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/trace.h"
#include "ipc/registry.h"
#include "ipc/rpc.h"
#include "runtime/box_clocks.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/engine/request_tracker.h"
#include "runtime/options.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {

// StepPacer: the chunk size of chunked prefill, chosen so that a step takes about a given time. On
// a CPU a step with thousands of rows takes minutes; until it ends, nothing can be aborted or
// reported. Not thread-safe.
class StepPacer {
 public:
  // step_s: target duration of a step. max_rows: upper limit of rows().
  StepPacer(double step_s, std::int64_t max_rows)
      : step_s_(step_s), max_rows_(std::max<std::int64_t>(max_rows, 1)) {}

  // Rows of the next step. The first steps are small enough to be fast on almost any machine.
  std::int64_t rows() const { return std::min(rows_, max_rows_); }

  // Records that a step of step_rows rows took `seconds`. Steps with few rows are ignored: they are
  // a prompt's last chunk, or decodes.
  void note(std::int64_t step_rows, double seconds) {
    if (step_rows * 2 < rows() || seconds <= 0) return;
    const double fitting = static_cast<double>(step_rows) * step_s_ / seconds;
    const auto wanted = static_cast<std::int64_t>(std::min(fitting, 1e9));
    // At most doubles at a time: a step may have been short by chance.
    rows_ = std::clamp(wanted, kMinRows, 2 * rows_) / kMinRows * kMinRows;
  }

 private:
  // Smaller GEMMs read the weights just as often, and are not faster.
  static constexpr std::int64_t kMinRows = 8;
  static constexpr std::int64_t kFirstRows = 16;

  double step_s_;
  std::int64_t max_rows_;
  std::int64_t rows_ = kFirstRows;
};

class EngineRank;  // the methods that every rank binds (engine_rank.h)

// How rank 0 opens an engine: every rank creates its runner while its weights are
// still loading; GEMMs are tuned if --tune requires it; then the cache is sized by the rank with
// the smallest free memory, and allocated.
struct EngineSetup {
  EngineInfo info;
  SchedulerLimits limits;
};

// Used by rank 0's main thread. Pushes "load_state" to the launcher while it waits for the weights.
EngineSetup set_up_engine(const EngineOptions& options, ipc::Member& me, ipc::GroupCaller& caller,
                          ipc::RequestServer& server, const EngineRank& own);

// Maximum number of steps in flight: the device runs one, and with async_scheduling the next one is
// enqueued after it. In a pipeline each stage runs one step and none is enqueued ahead: the first
// stage cannot read the last sampled token from its device, because only the last stage's device
// has it.
int steps_in_flight(const EngineOptions& options, int stages);

// Used by rank 0's main thread.
class Engine {
 public:
  // All arguments must outlive the engine.
  Engine(ipc::Member& me, ipc::GroupCaller& caller, ipc::RequestServer& server, EngineRank& own)
      : me_(me), caller_(caller), server_(server), own_(own), clocks_(me, caller) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void bind(ipc::Registry& requests);

  // Runs steps and serves requests until the launcher asks the group to stop. When there is nothing
  // to compute, it sleeps on the requests ring.
  void serve(const ipc::Registry& requests);

 private:
  // Methods that the front end calls.
  EngineInfo open(const EngineOptions& requested);
  void receive_chunk(const RequestChunk& part);
  EngineStatistics statistics();
  std::vector<ProcessTrace> take_trace();

  void start_request(std::uint64_t id, Request request);
  void refuse_request(std::uint64_t id, const std::string& why, bool internal_error);
  void abort_request(std::uint64_t id);
  void gather_requests(const ipc::Registry& requests);

  // Whether there is a step to schedule or to wait for. Steps of aborted requests are waited for
  // too, because the next step may need their slots.
  bool busy() const { return scheduler_ && (!scheduler_->idle() || scheduler_->in_flight() > 0); }
  void run_round(const ipc::Registry& requests);
  void enqueue_steps();
  bool enqueue_step();
  void finish_step();
  const std::string& why_no_token();
  StepResult await_result();
  void poll_result();
  void push_updates();
  void push();
  void synchronize();

  ipc::Member& me_;
  ipc::GroupCaller& caller_;
  ipc::RequestServer& server_;
  EngineRank& own_;
  BoxClocks clocks_;  // of traces

  EngineOptions options_;
  std::optional<Scheduler> scheduler_;  // set by open(), like tracker_
  std::optional<RequestTracker> tracker_;
  std::optional<StepPacer> pacer_;  // if prefill_step_s is set
  RequestUnpacker unpacker_;
  bool more_follows_ = false;  // the front end has announced another part
  std::vector<Update> updates_;
  std::string why_no_token_;  // empty until the first such failure
  bool settled_ = true;       // no step was enqueued since all ranks waited for their devices

  EngineStatistics statistics_;
  std::int64_t device_began_ns_ = 0;  // when the device started its current step
};

}  // namespace nvllm::runtime
