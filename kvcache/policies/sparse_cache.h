// SparseCache: a KV cache whose attention reads only what policies select. It wraps a cache whose
// layers are on the device as a whole, either all at once or one at a time (LayerwiseCache).
//
// What the rows of a sequence in a step (or in a part, where a layer takes the step in parts) read:
//   one row                         what Quest selects; everything without Quest
//   several, of a long sequence     what the prompt policy selects; everything without one
//   several, of a short sequence    everything
// A chunk of a prompt that is one row counts as one row.
//
// With Quest, a LayerwiseCache leaves its layers in host memory in steps of one row per sequence,
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
  std::int64_t rows = 0;       // of a step, or of the largest part of one
  std::int64_t sequences = 0;  // of a step
  // Prompts are long from so many tokens on (those of the step's rows and all before them).
  std::int64_t min_tokens = 0;
};

// Used by one thread, with one stream.
class SparseCache final : public KvCache {
 public:
  // cache: attends to its store_view(); must outlive it, as all it is given. prompts: nullptr:
  // none.
  SparseCache(Backend& backend, Stream& stream, KvCache& cache, PromptPolicy* prompts,
              std::optional<QuestLimits> quest, const SparseLimits& limits);
  // The same for a layer-wise cache; with Quest it must be one that decodes on the host.
  SparseCache(Backend& backend, Stream& stream, LayerwiseCache& cache, PromptPolicy* prompts,
              std::optional<QuestLimits> quest, const SparseLimits& limits);

  // The device memory that it takes.
  static std::size_t bytes(const std::optional<QuestLimits>& quest, const SparseLimits& limits,
                           bool layerwise = false);

  TensorView tokens() const override { return cache_.tokens(); }
  TensorView block_map() const override { return cache_.block_map(); }
  StepPlan begin_step(const KvStep& step, Stream& stream) override;
  void begin_pass(Stream& stream) override { cache_.begin_pass(stream); }
  kernels::KvView store_view(std::int64_t layer, Stream& stream) override {
    return cache_.store_view(layer, stream);
  }
  void run_attention(std::int64_t layer, const kernels::Attention& args, Stream& stream) override;
  void end_pass(Stream& stream) override { cache_.end_pass(stream); }
  void end_step(Stream& stream) override { cache_.end_step(stream); }
  void end_sequence(std::uint32_t slot) override { cache_.end_sequence(slot); }
  KvTraffic traffic() const override;

 private:
  enum class Kind { one_row, chosen, everything };
  // Rows of a sequence from position `first` on, and how many of its rows come in later steps.
  struct Rows {
    std::int64_t first, rows, to_come;
  };
  // Sequences of a call, one after the other, that are attended to together.
  struct Run {
    Kind kind;
    std::int64_t first_sequence, sequences;
    std::int64_t first_row, rows;
    std::int64_t first_position, longest;  // longest: the tokens of the longest one
    std::int64_t to_come;                  // of the last one's rows, so many later
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
  // Of the step. One row per sequence is one call, which counts padding in: a graph may keep it.
  bool decodes_ = false;
  std::vector<Rows> sequences_;
  // Where a layer's calls have come to: a sequence, and how many of its rows are done.
  std::int64_t layer_ = -1;
  std::size_t next_sequence_ = 0;
  std::int64_t done_ = 0;
  std::vector<Run> runs_;  // of a call
  std::uint64_t gathered_bytes_ = 0;
  // Where sequences begin that have one row each, [sequences + 1]; and for every number of rows r,
  // 0 and r, [rows + 1, 2]: of a single sequence.
  Buffer starts_;
  TensorView one_row_starts_, single_starts_;
};

}  // namespace nvllm::kvcache
