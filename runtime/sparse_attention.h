// What --prefill-attention and --decode-attention make of a runner's cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "device/backend.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/quest.h"
#include "kvcache/policies/sparse_cache.h"
#include "runtime/engine_options.h"
#include "runtime/sparse_options.h"

namespace nvllm::runtime {

struct SparseAttentionOptions {
  PrefillAttention prefill = PrefillAttention::full;
  DecodeAttention decode = DecodeAttention::full;

  bool any() const { return prefill != PrefillAttention::full || decode != DecodeAttention::full; }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(prefill, decode);
  }
};

// What there is of a rank, for its policies.
struct SparseAttentionLimits {
  std::int64_t rows = 0;       // of a step
  std::int64_t sequences = 0;  // of a step
  std::int64_t tokens = 0;     // of a sequence
  std::int64_t heads = 0;      // this rank's query heads
  std::size_t key_bytes = 0;   // kvcache::PromptLimits
};

// A runner's policies, and the cache that asks them. Used by one thread.
class SparseAttention {
 public:
  // Takes prompt_bytes(): what prompt policies need, however large the cache gets.
  SparseAttention(Backend& backend, const SparseAttentionOptions& options,
                  const SparseAttentionLimits& limits);

  static std::size_t prompt_bytes(const SparseAttentionOptions& options,
                                  const SparseAttentionLimits& limits);
  // Of the cache, beside its own blocks: of each block, and beside them.
  std::size_t block_bytes(const kvcache::BlockShape& shape) const;
  std::size_t fixed_bytes(const kvcache::BlockShape& shape, bool layerwise = false) const;

  // A cache that asks the policies, over one whose blocks have this shape.
  std::unique_ptr<kvcache::KvCache> wrap(kvcache::ViewCache& views,
                                         const kvcache::BlockShape& shape, std::int64_t blocks,
                                         Stream& stream);
  std::unique_ptr<kvcache::KvCache> wrap(kvcache::LayerwiseCache& storage,
                                         const kvcache::BlockShape& shape, std::int64_t blocks,
                                         Stream& stream);
  // For a cache that asks them itself.
  kvcache::PromptPolicy* prompts() const { return prompts_.get(); }
  std::int64_t min_tokens() const { return cache_limits().min_tokens; }

 private:
  std::optional<kvcache::QuestLimits> quest_limits(const kvcache::BlockShape& shape,
                                                   std::int64_t blocks) const;
  kvcache::SparseLimits cache_limits() const;

  Backend& backend_;
  SparseAttentionOptions options_;
  SparseAttentionLimits limits_;
  std::unique_ptr<kvcache::PromptPolicy> prompts_;  // nullptr: none
};

}  // namespace nvllm::runtime
