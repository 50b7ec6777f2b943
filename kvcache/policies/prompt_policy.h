// PromptPolicy: which earlier tokens the rows of a long prompt attend to. A policy chooses for one layer of one
// sequence at a time, out of nothing but the rows' queries and the keys of all tokens up to them: it keeps
// nothing from one call to the next, so there is nothing of a sequence that could outlive it.
//
// A prompt that is computed in several steps is chosen for step by step: each step's rows against all tokens
// before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "device/backend.h"
#include "kernels/attention/attention.h"
#include "kernels/sparse/prompt_rows.h"
#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kvcache {

// What a prompt policy's memory is for.
struct PromptLimits {
  std::int64_t rows = 0;    // of a call
  std::int64_t tokens = 0;  // of a sequence
  std::int64_t heads = 0;   // this rank's query heads
  // Of a token's keys, those of this rank's KV heads, where it is worth it to gather them: GPUs have products of
  // 16 bits that want keys which lie in blocks one behind the other. 0: nowhere.
  std::size_t key_bytes = 0;
};

struct PromptAttention {
  TensorView out;  // [rows, heads, head_dim]
  kernels::PromptRows rows;
  std::int64_t to_come = 0;  // rows of the prompt behind these
};

// Of an attention of one sequence's rows alone, whose first one is at this position.
inline PromptAttention prompt_attention(const kernels::Attention& args, std::int64_t first_position,
                                        std::int64_t to_come) {
  PromptAttention prompt;
  prompt.to_come = to_come;
  prompt.out = args.out;
  prompt.rows.q = args.q;
  prompt.rows.kv = args.kv;
  prompt.rows.first_position = first_position;
  prompt.rows.group = args.group;
  prompt.rows.first_head = args.first_head;
  prompt.rows.scale = args.scale;
  return prompt;
}

// Used by one thread, with one stream.
class PromptPolicy {
 public:
  virtual ~PromptPolicy() = default;
  virtual const char* name() const = 0;
  // Enqueues choice and attention of all rows of a sequence that a step has.
  virtual void attend(const PromptAttention& args, Stream& stream) = 0;
};

// XAttention: tiles by antidiagonal sums, until they cover `threshold` of each row of tiles. 1 keeps all. The last
// 128 rows of a prompt attend to everything, whatever the threshold: a question may be asked by one row of them.
struct XAttention {
  static constexpr float kThreshold = 0.95f;  // the published one
  static std::size_t bytes(const PromptLimits& limits);
  static std::unique_ptr<PromptPolicy> create(Backend& backend, const PromptLimits& limits,
                                              float threshold = kThreshold);
};

// MInference: columns and diagonals, `budget` times as many as kernels::vertical_slash_budget() says, or all.
struct MInference {
  static constexpr float kPublished = 1;
  static constexpr float kEverything = std::numeric_limits<float>::infinity();
  static kernels::VerticalSlashBudget lines(std::int64_t tokens, float budget = kPublished);
  static std::size_t bytes(const PromptLimits& limits, float budget = kPublished);
  static std::unique_ptr<PromptPolicy> create(Backend& backend, const PromptLimits& limits,
                                              float budget = kPublished);
};

}  // namespace nvllm::kvcache
