// What a runner is made for.
#pragma once

#include <cstdint>
#include <optional>

#include "kvcache/chunked/load_ring.h"
#include "runtime/engine_options.h"
#include "runtime/sparse_attention.h"

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

}  // namespace nvllm::runtime
