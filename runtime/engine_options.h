// EngineOptions: how the engine works, as the command line says it. Names as vLLM's.
#pragma once

#include <cstdint>
#include <optional>

namespace nvllm::runtime {

enum class Scheduling : std::uint8_t { prefill_first, mixed };
enum class Preemption : std::uint8_t { swap, recompute };

struct EngineOptions {
  std::int64_t block_size = 16;
  double gpu_memory_utilization = 0.9;  // of a GPU's whole memory, by everything this program takes
  std::optional<std::int64_t> kv_cache_memory_bytes;  // of each rank; absent: what is left of it
  std::optional<std::int64_t> max_model_len;          // absent: the model's limit, or what fits
  std::int64_t max_num_seqs = 256;
  std::int64_t max_num_batched_tokens = 8192;
  bool prefix_caching = true;
  Scheduling scheduling = Scheduling::mixed;
  Preemption preemption = Preemption::swap;  // recompute where the swap space is full
  // Pinned host memory of each rank at most; by default what there is, up to that.
  static constexpr std::int64_t kUsualSwapSpace = std::int64_t{4} << 30;
  std::int64_t swap_space_bytes = kUsualSwapSpace;
  bool graphs = true;            // --enforce-eager: false
  bool async_scheduling = true;  // one step ahead
  std::uint64_t seed = 0;  // of requests that have none: theirs come from this one and their number
  bool profile = false;    // record a trace

  template <class Archive>
  void serialize(Archive& archive) {
    archive(block_size, gpu_memory_utilization, kv_cache_memory_bytes, max_model_len, max_num_seqs,
            max_num_batched_tokens, prefix_caching, scheduling, preemption, swap_space_bytes,
            graphs, async_scheduling, seed, profile);
  }
};

}  // namespace nvllm::runtime
