#include "runtime/sparse_attention.h"

namespace nvllm::runtime {
namespace {

static_assert(kQuestPageTokens == kvcache::Quest::kPageTokens);

kvcache::PromptLimits prompt_limits(const SparseAttentionLimits& limits) {
  return {.rows = limits.rows,
          .tokens = limits.tokens,
          .heads = limits.heads,
          .key_bytes = limits.key_bytes};
}

}  // namespace

SparseAttention::SparseAttention(Backend& backend, const SparseAttentionOptions& options,
                                 const SparseAttentionLimits& limits)
    : backend_(backend), options_(options), limits_(limits) {
  if (options.prefill == PrefillAttention::minference) {
    prompts_ = kvcache::MInference::create(backend, prompt_limits(limits));
  } else if (options.prefill != PrefillAttention::full) {
    prompts_ = kvcache::XAttention::create(backend, prompt_limits(limits));
  }
}

std::size_t SparseAttention::prompt_bytes(const SparseAttentionOptions& options,
                                          const SparseAttentionLimits& limits) {
  if (options.prefill == PrefillAttention::full) return 0;
  if (options.prefill == PrefillAttention::minference)
    return kvcache::MInference::bytes(prompt_limits(limits));
  return kvcache::XAttention::bytes(prompt_limits(limits));
}

std::size_t SparseAttention::block_bytes(const kvcache::BlockShape& shape) const {
  if (options_.decode == DecodeAttention::full) return 0;
  return kvcache::Quest::block_bytes(shape);
}

std::size_t SparseAttention::fixed_bytes(const kvcache::BlockShape& shape, bool layerwise) const {
  if (!options_.any()) return 0;
  return kvcache::SparseCache::bytes(quest_limits(shape, 0), cache_limits(), layerwise);
}

std::unique_ptr<kvcache::KvCache> SparseAttention::wrap(kvcache::ViewCache& views,
                                                        const kvcache::BlockShape& shape,
                                                        std::int64_t blocks, Stream& stream) {
  return std::make_unique<kvcache::SparseCache>(backend_, stream, views, prompts_.get(),
                                                quest_limits(shape, blocks), cache_limits());
}

std::unique_ptr<kvcache::KvCache> SparseAttention::wrap(kvcache::LayerwiseCache& storage,
                                                        const kvcache::BlockShape& shape,
                                                        std::int64_t blocks, Stream& stream) {
  return std::make_unique<kvcache::SparseCache>(backend_, stream, storage, prompts_.get(),
                                                quest_limits(shape, blocks), cache_limits());
}

std::optional<kvcache::QuestLimits> SparseAttention::quest_limits(const kvcache::BlockShape& shape,
                                                                  std::int64_t blocks) const {
  if (options_.decode == DecodeAttention::full) return std::nullopt;
  return kvcache::QuestLimits{
      .shape = shape, .blocks = blocks, .sequences = limits_.sequences, .tokens = limits_.tokens};
}

kvcache::SparseLimits SparseAttention::cache_limits() const {
  const bool automatic = options_.prefill == PrefillAttention::automatic;
  return {.rows = limits_.rows,
          .sequences = limits_.sequences,
          .min_tokens = automatic ? kAutomaticSparseTokens : kLeastSparseTokens};
}

}  // namespace nvllm::runtime
