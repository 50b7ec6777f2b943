// EngineRank: the methods that rank 0's engine calls on every rank, rank 0 included. They create
// the runner and the cache, run steps, and record a trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/trace.h"
#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/stage_link.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "runtime/memory/memory_plan.h"
#include "runtime/model/model_loading.h"
#include "runtime/runner/model_runner.h"

namespace nvllm::runtime {

// Used by the rank's main thread. Rank 0 calls, in this order: make_runner, optionally
// open_overlap, tune_gemms and gemm_tuning_report, engine_memory, make_cache, optionally
// commit_cache, then step any number of times. It calls synchronize only when no step is in flight.
class EngineRank {
 public:
  // All arguments must outlive this object. link: nullptr if there is one pipeline stage.
  EngineRank(ipc::Member& me, ModelRank& model, Backend& backend, Stream& stream,
             ipc::Communicator& communicator, ipc::StageLink* link)
      : me_(me),
        model_(model),
        backend_(backend),
        stream_(stream),
        communicator_(communicator),
        link_(link) {}

  void bind(ipc::Registry& methods);

  ModelRunner& runner() { return *runner_; }
  Trace* trace() { return trace_ ? &*trace_ : nullptr; }
  DeviceKind device() const { return backend_.kind(); }
  const OpenModel& model() const { return model_.model(); }
  // Whether some weights stay quantized.
  bool quantized() const { return model_.decoder().quantized(); }
  // Whether the model supports overlapping all-reduce with computation, if the communicator does.
  bool can_overlap() const {
    return device() == DeviceKind::cuda && model_.decoder().can_overlap();
  }
  int stages() const { return model_.decoder().stage().stages; }  // number of pipeline stages

 private:
  // May be called while the weights are still loading. If `profile`, this rank records a trace from
  // now on. gemm_tuning_file: see runtime/runner/gemm_tuning.h; empty: no file.
  void make_runner(const RunnerOptions& options, const std::string& gemm_tuning_file, bool profile);
  void open_overlap();
  void tune_gemms(const TunedSize& size);
  GemmTuningReport gemm_tuning_report();
  // Memory figures that determine the size of the cache. Call it once weights and runner are
  // allocated.
  RankMemory memory();
  void make_cache(const CacheSize& size);
  void commit_cache();
  void step(const StepMessage& message);
  // Waits for the device, and clears the rank's record of being in a collective.
  void synchronize();
  kvcache::KvTraffic kv_traffic();
  ProcessTrace take_trace();

  // Runs work in which all ranks take part. If it throws, the group is aborted, because other ranks
  // may be waiting for this rank in a collective.
  template <typename Work>
  void run_collective(const char* what, const Work& work);
  Peers peers();

  ipc::Member& me_;
  ModelRank& model_;
  Backend& backend_;
  Stream& stream_;
  ipc::Communicator& communicator_;  // between the ranks of this stage
  ipc::StageLink* const link_;
  std::optional<Trace> trace_;
  RunnerOptions options_;
  std::string tuning_problem_;
  std::vector<float> kv_scales_;  // scales of this rank's KV heads in an E4m3 cache; empty: all are
                                  // 1
  std::optional<ModelRunner> runner_;
  std::int64_t last_step_ns_ = 0;
};

}  // namespace nvllm::runtime
