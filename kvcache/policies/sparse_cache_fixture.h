// Sequences whose keys, values and queries depend on a seed, in caches with policies: what several
// tests let them do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/chunked/chunked_cache.h"
#include "kvcache/policies/sparse_cache.h"

namespace nvllm::kvcache::sparse_test {

inline constexpr std::int64_t kLayers = 2, kKvHeads = 2, kGroup = 2, kHeads = 4, kHeadDim = 64;
inline constexpr std::int64_t kBlocks = 160, kSequences = 6, kMaxRows = 700, kMaxTokens = 1024;

// Its values depend on its seed and its places alone.
struct Sequence {
  Sequence(std::uint32_t slot, unsigned seed) : slot(slot), seed(seed) {}

  std::uint32_t slot;
  unsigned seed;
  std::vector<BlockId> blocks;
  std::int64_t length = 0;
  std::vector<float> results[kLayers];  // of all its rows so far

  std::vector<float> values(std::int64_t layer, std::int64_t position, unsigned what,
                            std::int64_t heads) const {
    const auto at = static_cast<std::uint64_t>((position * kLayers + layer) * 3) + what;
    std::uint64_t state = (seed * 1000003 + at) << 32;
    std::vector<float> values(static_cast<std::size_t>(heads * kHeadDim));
    for (float& value : values) value = (what == 0 ? 2.0f : 1.0f) * bell(state += kStep);
    return values;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;

  // Nearly normal, as sums of four are, with a variance of 1 (splitmix64: millions of values are
  // needed).
  static float bell(std::uint64_t state) {
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    state = (state ^ state >> 27) * 0x94d049bb133111eb;
    state ^= state >> 31;
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(state >> 16 * i & 0xffff) / 65536 - 0.5f;
    return sum * 1.7320508f;
  }
};

// Which cache plays: the policies' or, for everything, the storage's own.
struct Policies {
  std::function<std::unique_ptr<PromptPolicy>(Backend&, const PromptLimits&)>
      prompts;                    // may be none
  std::int64_t quest_budget = 0;  // tokens; 0: none
  double host_share = 0;          // in chunks: of the host's cores
};

Policies xattention(float threshold);
Policies minference(float budget);

inline const PromptLimits kPromptLimits{.rows = kMaxRows, .tokens = kMaxTokens, .heads = kHeads};

// hybrid: chunked, but some sequences keep blocks on the device: those of slot 0 all, and of slot 1
// the first.
enum class Where { paged, chunked, hybrid, layerwise };
inline constexpr Where kEverywhere[] = {Where::paged, Where::chunked, Where::hybrid,
                                        Where::layerwise};
inline constexpr std::int64_t kKept[] = {64, 3, 0, 0, 0, 0};
// Prompts of kMinTokens tokens or more are long. A chunked cache has kRingSlots ring slots, a
// layer-wise one kBuffers buffers.
inline constexpr std::int64_t kMinTokens = 100, kRingSlots = 2, kBuffers = 2;
// A layer-wise cache's groups have boundaries between neighbouring blocks, and the last group is
// shorter.
inline constexpr GroupSizes kGroups = {.blocks = 7};

class CachePlayer {
 public:
  CachePlayer(Backend& backend, const Policies& policies, std::int64_t block_size = 16,
              Where where = Where::paged);
  ~CachePlayer() { stream_->synchronize(); }

  using Rows = std::vector<std::pair<Sequence*, std::int64_t>>;

  // Computes the next rows of some sequences and appends their results. micro_batch_rows: max. rows
  // that a layer processes at once. later_rows: rows of each that come later.
  void step(const Rows& rows, std::int64_t micro_batch_rows = kMaxRows,
            std::int64_t later_rows = kMaxTokens);

  // Its slot and its blocks are free.
  void end(const Sequence& sequence) { cache_->end_sequence(sequence.slot); }
  KvTraffic traffic() const { return cache_->traffic(); }
  // By arithmetic, of the device.
  std::size_t predicted_bytes() const { return policy_bytes_ + predicted_; }

 private:
  // Rows of sequences that a layer takes at a time.
  struct Piece {
    Sequence* sequence;
    std::int64_t first, rows;
  };
  using Call = std::vector<Piece>;

  static std::vector<Call> cut(const Rows& rows, std::int64_t micro_batch_rows);
  // Where a cache keeps blocks that it has not where their numbers say.
  void fetch_block_map();
  void run_attention(std::int64_t layer, const Call& call);
  void store(std::int64_t layer, const Sequence& sequence, std::int64_t t);

  Backend& backend_;
  const bool hybrid_;
  std::unique_ptr<Stream> stream_;
  BlockShape shape_;
  std::unique_ptr<PromptPolicy> prompts_;
  std::unique_ptr<KvCache> storage_;  // of cache_
  std::unique_ptr<KvCache> cache_;
  std::vector<std::int32_t> block_map_;
  std::vector<std::vector<float>> stored_;  // on its way
  std::size_t policy_bytes_ = 0, predicted_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace nvllm::kvcache::sparse_test
