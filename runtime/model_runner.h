// ModelRunner: one rank's half of every step: it follows the step messages, keeps each slot's sequence on
// its device, and enqueues forward pass and sampling. It runs ahead of its device: step() returns when
// the work is enqueued.
//
// The tokens that a step draws stay on the device, where the next step reads them. What a step works on
// (positions, slots, tables) is computed on the device, too, from a few numbers per sequence, so a step
// costs one small copy to the device, and decode steps are captured graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/trace.h"
#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/registry.h"
#include "kvcache/kv_cache.h"
#include "model/decoder.h"
#include "runtime/product_tuning.h"
#include "runtime/runner_cache.h"
#include "runtime/runner_options.h"
#include "runtime/step.h"

namespace nvllm::runtime {

// Used by the rank's main thread.
class ModelRunner {
 public:
  // Takes everything but the cache, workspace_bytes() in all: activations, sampler, step input, results. The
  // decoder's parameters are bound, though perhaps not filled yet. All must outlive it. communicator: nullptr for
  // one rank. progress: called from some thread as the device gets on in steps that may take minutes.
  ModelRunner(const model::Decoder& decoder, Backend& backend, Stream& stream,
              ipc::Communicator* communicator, const RunnerOptions& options, Trace* trace = nullptr,
              std::function<void()> progress = {});
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  kvcache::BlockShape block_shape() const;
  CacheBytes cache_bytes() const;

  // How products are computed, as earlier runs measured it (kernels::Matmul::adopt). Before the first step.
  void adopt(kernels::ProductChoices choices);
  // Measures it for steps of this size, as far as it is not known; between steps, after the weights have been
  // loaded. A collective call.
  void tune_products(const TunedSize& size);
  // What is known and what was measured.
  ProductReport products();

  // Once, before the first step, after the weights have been loaded; see RunnerCache::make().
  void make_cache(std::int64_t blocks, std::int64_t host_blocks, std::int64_t device_slots = 0,
                  bool all_stay = false);

  // Bytes between this rank's device and the host, of all steps so far.
  kvcache::KvTraffic kv_traffic() const;

  // Enqueues a step. A collective call; the messages must be the same on all ranks.
  void step(const StepMessage& message);

  // keeps_results: of the oldest step whose result was not taken.
  bool result_ready();
  StepResult take_result();  // waits for it; a stuck peer is an Error with its name

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::runtime
