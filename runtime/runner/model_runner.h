// ModelRunner: one rank's part of every step. It applies the step messages, keeps the state of each
// slot's sequence on its device, and enqueues forward pass and sampling. It is asynchronous: step()
// returns when the work is enqueued.
//
// The tokens that a step samples stay on the device, where the next step reads them. The inputs of
// a step (positions, slots, block tables) are also computed on the device from a few numbers per
// sequence, so a step costs one small copy to the device, and decode steps run as captured graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/trace.h"
#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/stage_link.h"
#include "kernels/gemm/gemm.h"
#include "kvcache/kv_cache.h"
#include "layers/sampler.h"
#include "model/decoder.h"
#include "runtime/runner/decode_graphs.h"
#include "runtime/runner/gemm_tuning.h"
#include "runtime/runner/runner_cache.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/slot_table.h"
#include "runtime/runner/step_results.h"
#include "runtime/runner/step_staging.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// How a runner communicates with the runners of other ranks.
struct Peers {
  // Between the stage's ranks, even if there is only one; nullptr: one rank in total.
  ipc::Communicator* communicator = nullptr;
  ipc::StageLink* link = nullptr;  // nullptr: one stage
};

// Used by the rank's main thread.
class ModelRunner {
 public:
  // Allocates workspace_bytes(): activations, sampler, step input and results, but not the cache.
  // The decoder's parameters are bound, though perhaps not yet loaded. All arguments must outlive
  // the runner. progress: called from some thread as the device advances in steps that may take
  // minutes.
  ModelRunner(const model::Decoder& decoder, Backend& backend, Stream& stream, const Peers& peers,
              const RunnerOptions& options, Trace* trace = nullptr,
              std::function<void()> progress = {});
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  kvcache::BlockShape block_shape() const { return cache_.block_shape(); }
  CacheBytes cache_bytes() const { return cache_.bytes(); }

  // Adopts GEMM configurations that earlier runs measured (kernels::Gemm::adopt). Call before the
  // first step.
  void adopt(kernels::GemmConfigurations configurations);
  // Measures the missing configurations for steps of this size. Call between steps, after the
  // weights have been loaded. A collective call.
  void tune_gemms(const TunedSize& size);
  // Known configurations, and those measured in this run.
  GemmTuningReport gemm_tuning();

  // Allocates what overlapping needs (RunnerOptions::overlap_rows). Without this call, or if the
  // communicator gains nothing from it, no step is overlapped. A collective call.
  void open_overlap();

  // Call once, before the first step, after the weights have been loaded; see RunnerCache::make().
  void make_cache(const CacheSize& size, std::vector<float> kv_scales = {});
  // See RunnerCache::commit().
  void commit_cache() { cache_.commit(progress_); }

  // Bytes copied between this rank's device and the host in all steps so far.
  kvcache::KvTraffic kv_traffic() const;

  // Enqueues a step. A collective call; the messages must be the same on all ranks.
  void step(const StepMessage& message);

  // keeps_results: the oldest step whose result has not been taken.
  bool result_ready();
  StepResult take_result();  // waits for it; throws an Error that names a stuck peer

 private:
  void apply(const StepMessage& message);
  kvcache::StepPlan begin_cache_step(std::uint64_t number, std::span<const ScheduledRows> parts,
                                     bool may_capture);
  layers::Sampled run(std::uint64_t number, std::span<const ScheduledRows> parts);
  layers::Sampled run_as_graph(std::span<const ScheduledRows> parts, StepShape shape,
                               std::uint64_t cache_graph_key, const layers::SampleStep& required);
  void load(std::span<const ScheduledRows> parts, const StepShape& shape);
  // The forward pass up to the LM-head GEMM, which is returned; nullopt on stages without a head.
  std::optional<layers::LogitsCall> forward(const StepShape& shape);
  model::ForwardResources device() {
    return {stream_, *gemm_, peers_.communicator, peers_.link, progress_};
  }
  layers::SampleStep required_sampling(std::span<const ScheduledRows> parts);
  // head: the GEMM that computes the logits; nullptr: they are computed already.
  layers::Sampled sample(const StepShape& shape, std::int64_t rows,
                         const layers::SampleStep& required, const layers::LogitsCall* head);

  const model::Decoder& decoder_;
  Backend& backend_;
  Stream& stream_;
  const Peers peers_;
  const RunnerOptions options_;
  Trace* trace_;
  std::function<void()> progress_;

  std::unique_ptr<kernels::Gemm> gemm_;
  model::DecoderMemory memory_;
  std::optional<layers::Sampler> sampler_;  // on the last stage
  StepStaging staging_;
  SlotTable slots_;
  DecodeGraphs graphs_;
  StepTimer timer_;
  RunnerCache cache_;
  std::optional<StateStore> states_;  // created with the cache
  std::optional<StepResults> results_;
  std::optional<ResultSender> sender_;            // on the first rank of a pipeline's last stage
  std::vector<kvcache::StepSequence> sequences_;  // of the step; kept to reuse its memory
  bool starts_ = false;                           // whether a sequence starts with this step
  TensorView tokens_;                             // receives the tokens that every step samples
};

}  // namespace nvllm::runtime
