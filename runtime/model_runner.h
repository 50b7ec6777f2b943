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
#include <optional>
#include <string>
#include <vector>

#include "base/trace.h"
#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "ipc/registry.h"
#include "kvcache/kv_traffic.h"
#include "kvcache/offload_waits.h"
#include "kvcache/paged_storage.h"
#include "model/decoder.h"
#include "runtime/engine_options.h"
#include "runtime/product_tuning.h"
#include "runtime/sparse_attention.h"
#include "runtime/step.h"

namespace nvllm::runtime {

struct RunnerOptions {
  std::int64_t max_model_len = 0;
  std::int64_t max_num_seqs = 0;
  std::int64_t max_num_batched_tokens = 0;
  std::int64_t max_logit_rows = 0;
  std::int64_t block_size = 0;  // contiguous: of the one block that there is
  bool graphs = true;
  bool keeps_results = false;  // rank 0: copies what steps gave to the host
  int steps_ahead = 2;         // steps that may be enqueued without their results being taken
  KvMode kv_mode = KvMode::paged;
  std::int64_t ring_slots = 16;  // EngineOptions
  std::optional<double> host_attention = 0.0;
  std::int64_t host_threads = 0;
  std::int64_t kv_buffers = 4;
  SparseAttentionOptions sparse = {};
  // Not 0: a step's rows go through each layer so many at a time, before the next layer; memory for
  // activations is made for so many.
  std::int64_t part_rows = 0;
  kvcache::OffloadHooks offload_hooks = {};  // of tests

  template <class Archive>
  void serialize(Archive& archive) {
    archive(max_model_len, max_num_seqs, max_num_batched_tokens, max_logit_rows, block_size, graphs,
            keeps_results, steps_ahead, kv_mode, ring_slots, host_attention, host_threads,
            kv_buffers, part_rows, sparse);
  }
};

// Used by the rank's main thread.
class ModelRunner {
 public:
  // Takes everything but the cache: activations, sampler, step input, results. The decoder's parameters
  // are bound, though perhaps not filled yet. All must outlive it. communicator: nullptr for one rank.
  // progress: called from some thread as the device gets on in steps that may take minutes.
  ModelRunner(const model::Decoder& decoder, Backend& backend, Stream& stream,
              ipc::Communicator* communicator, const RunnerOptions& options, Trace* trace = nullptr,
              std::function<void()> progress = {});
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  // Device memory beside weights and cache, by arithmetic: what the constructor takes, and what steps may
  // take later (captured graphs; on the CPU, products of many rows).
  static std::size_t workspace_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                                     DeviceKind device);
  static std::size_t graph_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                                 DeviceKind device);
  kvcache::BlockShape block_shape() const;
  // What a cache takes: of each block on the device and on the host (0: nothing), of each of the device's
  // slots, and beside them on the device.
  struct CacheBytes {
    std::size_t block = 0, host_block = 0, fixed = 0, device_slot = 0;
  };
  CacheBytes cache_bytes() const;

  // How products are computed, as earlier runs measured it (kernels::Matmul::adopt). Before the first step.
  void adopt(kernels::ProductChoices choices);
  // Measures it for steps of this size, as far as it is not known; between steps, after the weights have been
  // loaded. A collective call.
  void tune_products(const TunedSize& size);
  // What is known and what was measured.
  ProductReport products();

  // Once, before the first step, after the weights have been loaded.
  // blocks: of the device, or of the host if the mode keeps them there; then there is nothing to swap to.
  // device_slots: chunked: of whole blocks (kvcache/device_slots.h); all_stay: there is one for each, for good.
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
