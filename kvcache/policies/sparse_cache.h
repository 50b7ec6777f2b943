// SparseCache: a cache on the device whose attention reads only what policies choose.
//
// What a sequence's rows of a step attend to:
//   one row                         what Quest chooses; everything without Quest
//   several, of a long sequence     what the prompt policy chooses; everything without one
//   several, of a short sequence    everything
// A chunk of a prompt that happens to be one row counts as one row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/backend.h"
#include "kvcache/kv_cache.h"
#include "kvcache/policies/prompt_policy.h"
#include "kvcache/policies/quest.h"

namespace nvllm::kvcache {

struct SparseLimits {
  std::int64_t rows = 0;       // of a step
  std::int64_t sequences = 0;  // of a step
  // Prompts are long from so many tokens on (those of the step's rows and all before them).
  std::int64_t least_tokens = 0;
};

// Used by one thread, with one stream.
class SparseCache final : public KvCache {
 public:
  // views: where keys and values are, per layer; must outlive it, as all it is given. prompts: nullptr: none.
  SparseCache(Backend& backend, Stream& stream, ViewCache& views, PromptPolicy* prompts,
              std::optional<QuestLimits> quest, const SparseLimits& limits);

  // Device memory that it takes.
  static std::size_t bytes(const std::optional<QuestLimits>& quest, const SparseLimits& limits);

  TensorView tokens() const override { return views_.tokens(); }
  TensorView homes() const override { return views_.homes(); }
  StepPlan begin_step(const KvStep& step, Stream& stream) override;
  void begin_pass(Stream& stream) override { views_.begin_pass(stream); }
  kernels::KvView store_view(std::int64_t layer, Stream& stream) override {
    return views_.store_view(layer, stream);
  }
  void attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) override;
  void end_pass(Stream& stream) override { views_.end_pass(stream); }
  void end_step(Stream& stream) override { views_.end_step(stream); }
  void end_sequence(std::uint32_t slot) override { views_.end_sequence(slot); }
  KvTraffic traffic() const override { return views_.traffic(); }

 private:
  enum class Kind { one_row, chosen, everything };
  // Sequences of the step, one after the other, that are attended together.
  struct Run {
    Kind kind;
    std::int64_t first_sequence, sequences;
    std::int64_t first_row, rows;
    std::int64_t first_position, longest;  // longest: the tokens of the longest one
  };

  Kind kind_of(const StepSequence& sequence) const;
  void attend_run(std::int64_t layer, const Run& run, const kernels::Attention& all,
                  Stream& stream);
  kernels::Attention part_of(const kernels::Attention& all, const Run& run) const;

  ViewCache& views_;
  PromptPolicy* prompts_;
  std::optional<Quest> quest_;
  SparseLimits limits_;
  // Of the step; no runs: all rows are of one kind, `whole_`.
  std::vector<Run> runs_;
  Kind whole_ = Kind::everything;
  // Where sequences begin that have one row each, [sequences + 1]; and for every number of rows r, 0 and r,
  // [rows + 1, 2]: of a single sequence.
  Buffer starts_;
  TensorView one_row_starts_, single_starts_;
};

}  // namespace nvllm::kvcache
