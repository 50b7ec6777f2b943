// EngineRank: what every rank, rank 0 too, does for the engine: it makes the runner and the cache,
// runs the steps it is told, and keeps a trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/trace.h"
#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "runtime/memory/memory_plan.h"
#include "runtime/model/model_loading.h"
#include "runtime/runner/model_runner.h"

namespace nvllm::runtime {

// Used by the rank's main thread. What rank 0 calls, in this order: make_runner, tune_gemms and
// gemm_tuning_report, engine_memory, make_cache, then step as often as it likes; settle whenever no
// step is under way.
class EngineRank {
 public:
  // All must outlive it.
  EngineRank(ipc::Member& me, ModelRank& model, Backend& backend, Stream& stream,
             ipc::Communicator& communicator)
      : me_(me), model_(model), backend_(backend), stream_(stream), communicator_(communicator) {}

  void bind(ipc::Registry& methods);

  ModelRunner& runner() { return *runner_; }
  Trace* trace() { return trace_ ? &*trace_ : nullptr; }
  DeviceKind device() const { return backend_.kind(); }
  const OpenModel& model() const { return model_.model(); }

 private:
  // The weights may still be loading. With `profile` this rank records a trace from now on.
  // gemm_tuning_file: runtime/runner/gemm_tuning.h; empty: there is none.
  void make_runner(const RunnerOptions& options, const std::string& gemm_tuning_file, bool profile);
  void tune_gemms(const TunedSize& size);
  GemmTuningReport gemm_tuning_report();
  // What the cache is sized from: as it is with weights and runner there.
  RankMemory memory();
  void make_cache(std::int64_t blocks, std::int64_t host_blocks, std::int64_t device_slots,
                  bool all_resident);
  void step(const StepMessage& message);
  // Waits for the device, and lets go of what its last collective was: an idle rank is not waiting.
  void settle();
  kvcache::KvTraffic kv_traffic();
  ProcessTrace take_trace();

  template <typename Part>
  void take_part(const char* what, const Part& part);
  ipc::Communicator* partners();  // nullptr: there are none

  ipc::Member& me_;
  ModelRank& model_;
  Backend& backend_;
  Stream& stream_;
  ipc::Communicator& communicator_;
  std::optional<Trace> trace_;
  RunnerOptions options_;
  std::string tuning_problem_;
  std::optional<ModelRunner> runner_;
  std::int64_t last_step_ns_ = 0;
};

}  // namespace nvllm::runtime
