// RunnerCache: a rank's keys and values, kept as its options say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/backend.h"
#include "kvcache/chunked/chunked_cache.h"
#include "kvcache/kv_cache.h"
#include "kvcache/paged/paged_cache.h"
#include "model/decoder.h"
#include "runtime/runner_options.h"
#include "runtime/sparse_attention.h"

namespace nvllm::runtime {

// What a cache takes: of each block on the device and on the host (0: nothing), of each of the device's
// slots, and beside them on the device.
struct CacheBytes {
  std::size_t block = 0, host_block = 0, fixed = 0, device_slot = 0;
};

// Used by the rank's main thread.
class RunnerCache {
 public:
  // Takes what prompt policies need, and no cache yet. All must outlive it.
  RunnerCache(const model::Decoder& decoder, Backend& backend, Stream& stream,
              const RunnerOptions& options);

  kvcache::BlockShape block_shape() const;
  CacheBytes bytes() const;

  // Once. blocks: of the device, or of the host if the mode keeps them there; then there is nothing to swap to.
  // device_slots: chunked: of whole blocks (kvcache/chunked/device_slots.h); all_stay: there is one for each, for good.
  void make(std::int64_t blocks, std::int64_t host_blocks, std::int64_t device_slots,
            bool all_stay);
  bool made() const { return cache_ != nullptr; }

  // Of the cache that was made.
  kvcache::KvCache& operator*() const { return *cache_; }
  kvcache::KvCache* operator->() const { return cache_.get(); }
  // Blocks to the host and back, where sequences can be swapped; elsewhere both are empty.
  void swap(std::span<const kvcache::BlockCopy> out, std::span<const kvcache::BlockCopy> in);

 private:
  bool decodes_by_quest() const { return options_.sparse.decode == DecodeAttention::quest; }
  int host_threads() const;
  kvcache::ChunkedOptions chunked_options(std::int64_t blocks, std::int64_t device_slots,
                                          bool all_stay) const;
  template <typename Storage>
  void use(std::unique_ptr<Storage> own, std::int64_t blocks);

  const model::Decoder& decoder_;
  Backend& backend_;
  Stream& stream_;
  const RunnerOptions& options_;
  SparseAttention sparse_;
  std::unique_ptr<kvcache::KvCache> storage_;  // of a sparse cache
  std::unique_ptr<kvcache::KvCache> cache_;
  kvcache::PagedCache* paged_ = nullptr;  // if it is the cache: sequences can be swapped
};

}  // namespace nvllm::runtime
