// RunnerOptions: the options with which rank 0 has every rank create its runner.
//
// They differ from EngineOptions, which hold what the user requests: here every automatic choice
// has been resolved (resolve_options() of memory/memory_plan.h, and the engine's setup), and
// policies that only rank 0's scheduler follows are left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/math.h"
#include "kvcache/chunked/load_ring.h"
#include "layers/sampler.h"
#include "model/decoder.h"
#include "runtime/options.h"

namespace nvllm::runtime {

struct RunnerOptions {
  std::int64_t max_model_len = 0;
  std::int64_t max_num_seqs = 0;
  std::int64_t max_num_batched_tokens = 0;
  std::int64_t max_logit_rows = 0;
  std::int64_t block_size = 0;  // contiguous mode: tokens of the only block
  bool graphs = true;
  bool keeps_results = false;  // on rank 0: copies the results of steps to the host
  // Maximum steps enqueued whose results have not been taken; in a pipeline one per stage.
  int steps_ahead = 2;
  KvMode kv_mode = KvMode::paged;
  KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;
  // Not 0: layers with a window form a group of the cache with its own blocks, which keeps only
  // this many tokens and a step's rows (kvcache/window_blocks.h). Paged mode only.
  std::int64_t window_group = 0;
  // As in EngineOptions.
  std::int64_t ring_slots = 16;
  std::optional<double> host_attention = 0.0;
  std::int64_t host_threads = 0;
  std::int64_t kv_buffers = 4;
  PrefillAttention prefill_attention = PrefillAttention::full;
  DecodeAttention decode_attention = DecodeAttention::full;
  bool invariant = false;        // layers::Context
  bool whole_sequences = false;  // chunked: as in kvcache::ChunkedOptions
  // Not 0: each layer processes a step's rows in parts of this size before the next layer starts;
  // activations are allocated for one part.
  std::int64_t micro_batch_rows = 0;
  // Not 0: a prefill step of at least this many rows is split into two micro-batches whose
  // all-reduces are overlapped. Requires micro_batch_rows == 0.
  std::int64_t overlap_rows = 0;
  kvcache::OffloadHooks offload_hooks = {};  // for tests

  template <class Archive>
  void serialize(Archive& archive) {
    archive(max_model_len, max_num_seqs, max_num_batched_tokens, max_logit_rows, block_size, graphs,
            keeps_results, steps_ahead, kv_mode, kv_cache_dtype, ring_slots, host_attention,
            host_threads, kv_buffers, micro_batch_rows, prefill_attention, decode_attention,
            invariant, whole_sequences, window_group, overlap_rows);
  }

  // Sizes of the largest step, in which every slot has a row: rows, rows with logits, and blocks of
  // a sequence's table.
  std::int64_t rows() const { return std::max(max_num_batched_tokens, max_num_seqs); }
  std::int64_t logit_rows() const { return std::max(max_logit_rows, max_num_seqs); }
  // Rows of a micro-batch.
  std::int64_t overlapped_micro_batch_rows() const { return divide_up(rows(), 2); }
  std::int64_t table_blocks() const { return divide_up(max_model_len, block_size); }

  model::DecoderLimits decoder_limits() const {
    return {.rows = rows(),
            .logit_rows = logit_rows(),
            .positions = max_model_len,
            .state_slots = max_num_seqs,
            .micro_batch_rows = micro_batch_rows,
            .overlap = overlap_rows > 0,
            .invariant = invariant};
  }
  layers::SamplerLimits sampler_limits() const {
    return {.slots = max_num_seqs, .rows = logit_rows()};
  }
};

}  // namespace nvllm::runtime
