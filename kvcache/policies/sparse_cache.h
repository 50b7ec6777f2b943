// SparseCache: a KV cache whose attention reads only the tokens that policies select. It wraps a
// cache whose layers are entirely on the device, either all at once or one at a time
// (LayerwiseCache).
//
// The rows of a sequence in a step (or in a part, where a layer processes the step in parts) read:
//   one row                         what Quest selects; everything without Quest
//   several, of a long sequence     what the prompt policy selects; everything without one
//   several, of a short sequence    everything
// A chunk of a prompt with one row counts as one row.
//
// With Quest, a LayerwiseCache keeps its layers in host memory in steps of one row per sequence,
// and the selected pages are gathered from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "kvcache/kv_cache.h"
#include "kvcache/layerwise/layerwise_cache.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/quest.h"

namespace nvllm::kvcache {

struct SparseLimits {
  std::int64_t rows = 0;       // per step, or in the largest part of one
  std::int64_t sequences = 0;  // per step
  // Prompts are long from this many tokens on (the step's rows and all before them).
  std::int64_t min_tokens = 0;
};

// Not thread-safe; uses one stream.
class SparseCache final : public KvCache {
 public:
  // cache: attention reads its store_view(). All arguments must outlive this object. prompts:
  // nullptr: none.
  SparseCache(Backend& backend, Stream& stream, KvCache& cache, PromptPolicy* prompts,
              std::optional<QuestLimits> quest, const SparseLimits& limits);
  // The same for a layer-wise cache; with Quest it must decode on the host.
  SparseCache(Backend& backend, Stream& stream, LayerwiseCache& cache, PromptPolicy* prompts,
              std::optional<QuestLimits> quest, const SparseLimits& limits);

  // Device memory of a SparseCache.
  static std::size_t bytes(const std::optional<QuestLimits>& quest, const SparseLimits& limits,
                           bool layerwise = false);

  TensorView tokens() const override { return cache_.tokens(); }
  TensorView block_map() const override { return cache_.block_map(); }
  StepPlan begin_step(const KvStep& step, Stream& stream) override;
  void begin_pass(Stream& stream) override { cache_.begin_pass(stream); }
  kernels::KvView store_view(std::int64_t layer, Stream& stream) override {
    return cache_.store_view(layer, stream);
  }
  void run_attention(std::int64_t layer, const kernels::Attention& args,
                     std::int64_t decode_sequences, Stream& stream) override;
  void end_pass(Stream& stream) override { cache_.end_pass(stream); }
  void end_step(Stream& stream) override { cache_.end_step(stream); }
  void end_sequence(std::uint32_t slot) override { cache_.end_sequence(slot); }
  KvTraffic traffic() const override;

 private:
  enum class Kind { one_row, chosen, everything };
  // Rows of a sequence from position `first` on, and the number of its rows in later steps.
  struct Rows {
    std::int64_t first, rows, later_rows;
  };
  // Consecutive sequences of a call that run together.
  struct Run {
    Kind kind;
    std::int64_t first_sequence, sequences;
    std::int64_t first_row, rows;
    std::int64_t first_position, longest;  // longest: the tokens of the longest sequence
    std::int64_t later_rows;               // rows of the last sequence in later steps
  };

  Kind kind_of(const Rows& rows) const;
  void choose_runs(std::int64_t layer, std::int64_t rows);
  void attend_on_host(std::int64_t layer, const kernels::Attention& args, Stream& stream);
  std::uint64_t max_gathered(const KvStep& step) const;
  void attend_run(std::int64_t layer, const Run& run, const kernels::Attention& all,
                  Stream& stream);
  kernels::Attention part_of(const kernels::Attention& all, const Run& run) const;

  KvCache& cache_;
  LayerwiseCache* layerwise_ = nullptr;  // the same, if it is one
  PromptPolicy* prompts_;
  std::optional<QuestLimits> quest_limits_;
  std::optional<Quest> quest_;
  std::optional<GatheredQuest> gathered_;
  SparseLimits limits_;
  // The step's sequences. If each has one row (decodes_), attention is one call that includes
  // padding, so that a graph may keep it.
  bool decodes_ = false;
  std::vector<Rows> sequences_;
  // The position of a layer's calls: a sequence, and how many of its rows are done.
  std::int64_t layer_ = -1;
  std::size_t next_sequence_ = 0;
  std::int64_t done_ = 0;
  std::vector<Run> runs_;  // of one call
  std::uint64_t gathered_bytes_ = 0;
  // The query_start of sequences with one row each, [sequences + 1]; and for every number of rows
  // r, 0 and r, [rows + 1, 2]: the query_start of a single sequence.
  Buffer starts_;
  TensorView one_row_starts_, single_starts_;
};

}  // namespace nvllm::kvcache
