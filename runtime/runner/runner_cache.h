// A rank's memory of its sequences. RunnerCache: the KV cache, in the mode and with the sparse
// attention policies that the options request. StateStore: copies of states of linear attention.
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
#include "kvcache/paged/paged_cache.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/quest.h"
#include "kvcache/policies/sparse_cache.h"
#include "model/decoder.h"
#include "runtime/runner/runner_options.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// Bytes of a cache: per block on the device and on the host (0: none there), per device slot, per
// block of the window group (0: none), and independent of these (`fixed`).
struct CacheBytes {
  std::size_t block = 0, host_block = 0, fixed = 0, device_slot = 0, window_block = 0;
};

// The number of blocks and slots that a cache gets.
struct CacheSize {
  std::int64_t blocks = 0;       // on the device, or in host memory in modes that keep them there
  std::int64_t host_blocks = 0;  // for swapping; 0 if blocks are in host memory
  // The same for the window group (RunnerOptions::window_group).
  std::int64_t window_blocks = 0, host_window_blocks = 0;
  // Chunked mode: slots for whole blocks (kvcache/chunked/device_slots.h), and whether every block
  // has its own permanent slot.
  std::int64_t device_slots = 0;
  bool all_resident = false;
  // Models with linear attention: slots for states, on the device and on the host (StateStore).
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
  // Allocates prompt_policy_bytes(), but no cache yet. All arguments must outlive this object.
  RunnerCache(const model::Decoder& decoder, Backend& backend, Stream& stream,
              const RunnerOptions& options);

  // Memory of the --prefill-attention policy, which does not depend on the size of the cache.
  static std::size_t prompt_policy_bytes(const model::Decoder& decoder,
                                         const RunnerOptions& options, DeviceKind device);

  kvcache::BlockShape block_shape() const;
  CacheBytes bytes() const;

  // Creates the cache; call once. kv_scales: for an E4m3 cache, [layers][2][this rank's KV heads];
  // empty: all are 1.
  void make(const CacheSize& size, std::vector<float> kv_scales = {});
  bool made() const { return cache_ != nullptr; }
  // Touches the memory of a paged cache in host memory, so that it is physically allocated.
  void commit(const std::function<void()>& progress);

  // The cache; valid after make().
  kvcache::KvCache& operator*() const { return *cache_; }
  kvcache::KvCache* operator->() const { return cache_.get(); }
  // Copies blocks to the host and back in modes with swapping; in other modes there are none to
  // copy.
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
  std::vector<float> scales_;  // of an E4m3 cache, on the host; empty: none
  Buffer device_scales_;
  std::unique_ptr<kvcache::PromptPolicy> prompt_policy_;  // nullptr: none
  std::unique_ptr<kvcache::KvCache> storage_;             // wrapped by a sparse cache
  std::unique_ptr<kvcache::KvCache> cache_;
  // The storage if sequences can be swapped; and that of the window group, if there is one.
  kvcache::PagedCache* paged_ = nullptr;
  kvcache::PagedCache* paged_windows_ = nullptr;
};

// StateStore: one rank's copies of the states of linear attention: snapshots on the device, from
// which other sequences resume (kvcache/state_snapshots.h), and states of swapped-out sequences in
// host memory. The step messages determine what is copied.
//
// Used by the rank's main thread. All copies are enqueued, in the stream's order.
class StateStore {
 public:
  // Takes exactly snapshots * DecoderMemory::state_bytes(decoder, 1) of device memory. Ledger:
  // "linear attention snapshots" (device), "swapped linear attention states" (pinned). A host place
  // is allocated when it is first copied to. `memory` must outlive it.
  StateStore(const model::Decoder& decoder, const model::DecoderMemory& memory, Backend& backend,
             std::int64_t snapshots, std::int64_t host_states);

  // Copies before a step's rows: to the host, from the host, and from snapshots.
  void load(const StateCopies& copies, Stream& stream);
  // Copies after a step's rows: to snapshots.
  void save(const StateCopies& copies, Stream& stream);

 private:
  enum class Direction : std::uint8_t { from_slot, to_slot };

  void copy(std::int32_t slot, std::byte* place, Direction direction, Stream& stream);
  std::byte* snapshot(std::int32_t number) const;
  std::byte* host_state(std::int32_t number, Direction direction);

  const model::DecoderMemory& memory_;
  Backend& backend_;
  const std::size_t state_bytes_;
  const std::int64_t snapshots_;
  Buffer snapshot_memory_;
  std::vector<Buffer> host_;  // allocated at first use
};

}  // namespace nvllm::runtime
