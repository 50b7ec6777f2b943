// RunnerCache: a rank's KV cache, in the mode and with the sparse attention policies that its
// options say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kvcache/chunked/chunked_cache.h"
#include "kvcache/kv_cache.h"
#include "kvcache/paged/grouped_cache.h"
#include "kvcache/paged/paged_cache.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/quest.h"
#include "kvcache/policies/sparse_cache.h"
#include "model/decoder.h"
#include "runtime/runner/runner_options.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// Bytes of a cache: for each block on the device and on the host (0: none there), for each of the
// device's slots, and beside them on the device; and for each block of the group of windows, if
// there is one.
struct CacheBytes {
  std::size_t block = 0, host_block = 0, fixed = 0, device_slot = 0, window_block = 0;
};

// How much of everything a cache gets.
struct CacheSize {
  std::int64_t blocks = 0;       // on the device, or in host memory if the mode keeps them there
  std::int64_t host_blocks = 0;  // to swap to; none where blocks are in host memory
  // Likewise of the group of windows (RunnerOptions::window_group).
  std::int64_t window_blocks = 0, host_window_blocks = 0;
  // Chunked: slots for whole blocks (kvcache/chunked/device_slots.h), and whether every block has
  // one of its own for good.
  std::int64_t device_slots = 0;
  bool all_resident = false;
  // Of models with linear attention: places for states, on the device and on the host
  // (runtime/runner/state_store.h).
  std::int64_t state_snapshots = 0, host_states = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(blocks, host_blocks, window_blocks, host_window_blocks, device_slots, all_resident,
            state_snapshots, host_states);
  }
};

// Used by the rank's main thread.
class RunnerCache {
 public:
  // Allocates prompt_policy_bytes(), and no cache yet. All must outlive it.
  RunnerCache(const model::Decoder& decoder, Backend& backend, Stream& stream,
              const RunnerOptions& options);

  // What the policy of --prefill-attention needs, however large the cache becomes.
  static std::size_t prompt_policy_bytes(const model::Decoder& decoder,
                                         const RunnerOptions& options, DeviceKind device);

  kvcache::BlockShape block_shape() const;
  CacheBytes bytes() const;

  // Makes the cache, once. kv_scales: of a cache of E4m3, [layers][2][this rank's KV heads]; empty:
  // all are 1.
  void make(const CacheSize& size, std::vector<float> kv_scales = {});
  bool made() const { return cache_ != nullptr; }
  // Touches the memory of a paged cache that lies in the host's, so that it is really there.
  void commit(const std::function<void()>& progress);

  // The cache that was made.
  kvcache::KvCache& operator*() const { return *cache_; }
  kvcache::KvCache* operator->() const { return cache_.get(); }
  // Copies blocks to the host and back, where sequences can be swapped; elsewhere all are empty.
  void swap(const StepMessage& message);

 private:
  bool decodes_by_quest() const { return options_.decode_attention == DecodeAttention::quest; }
  bool is_sparse() const {
    return decodes_by_quest() || options_.prefill_attention != PrefillAttention::full;
  }
  void make_mode(const CacheSize& size);
  bool has_window_group() const { return options_.window_group > 0; }
  std::vector<bool> layers_in_window_group() const;
  kvcache::BlockShape shape_of_group(bool windows) const;
  bool is_fp8() const { return options_.kv_cache_dtype == KvCacheDtype::fp8_e4m3; }
  std::size_t scale_bytes() const;
  void set_scales(std::vector<float> scales);
  std::optional<kvcache::QuestLimits> quest_limits(std::int64_t blocks) const;
  kvcache::SparseLimits sparse_limits() const;
  std::size_t sparse_bytes(bool layerwise) const;
  int host_threads() const;
  kvcache::ChunkedOptions chunked_options(std::int64_t blocks, std::int64_t device_slots,
                                          bool all_resident) const;
  template <typename Storage>
  void use(std::unique_ptr<Storage> storage, std::int64_t blocks);

  const model::Decoder& decoder_;
  Backend& backend_;
  Stream& stream_;
  const RunnerOptions& options_;
  std::vector<float> scales_;  // of a cache of E4m3, on the host; empty: none
  Buffer device_scales_;
  std::unique_ptr<kvcache::PromptPolicy> prompt_policy_;  // nullptr: none
  std::unique_ptr<kvcache::KvCache> storage_;             // under a sparse cache
  std::unique_ptr<kvcache::KvCache> cache_;
  // If it is the storage: sequences can be swapped. And of the group of windows, if there is one.
  kvcache::PagedCache* paged_ = nullptr;
  kvcache::PagedCache* paged_windows_ = nullptr;
};

}  // namespace nvllm::runtime
