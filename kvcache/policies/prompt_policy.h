// PromptPolicy: selects the earlier tokens that the rows of a long prompt attend to.
//
// A policy selects for one layer of one sequence at a time, from the rows' queries and the keys of
// all tokens up to them. It keeps no state between calls. If a prompt is computed in several steps
// (chunked prefill), each step selects for its own rows, from all tokens before them.
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

// The sizes that a prompt policy has memory for.
struct PromptLimits {
  std::int64_t rows = 0;    // per call
  std::int64_t tokens = 0;  // per sequence
  std::int64_t heads = 0;   // this rank's query heads
  // Bytes of a token's keys on this rank in the type of the rows, if keys should be gathered into
  // contiguous memory, which 16-bit GEMMs on GPUs need, and keys in E4m3: they are dequantized for
  // the selection. 0: keys are not gathered.
  std::size_t key_bytes = 0;
  bool e4m3 = false;  // the cache
};

struct PromptAttention {
  TensorView out;               // [rows, heads, head_dim]
  kernels::PromptRows rows;     // the keys may also be in E4m3
  TensorView kv_scales{};       // kernels::Attention::kv_scales
  std::int64_t later_rows = 0;  // rows of the prompt after these
};

// The same from the attention of one sequence's rows, the first of which is at this position.
inline PromptAttention prompt_attention(const kernels::Attention& args, std::int64_t first_position,
                                        std::int64_t later_rows) {
  PromptAttention prompt;
  prompt.later_rows = later_rows;
  prompt.out = args.out;
  prompt.rows.q = args.q;
  prompt.rows.kv = args.kv;
  prompt.kv_scales = args.kv_scales;
  prompt.rows.first_position = first_position;
  prompt.rows.group = args.group;
  prompt.rows.first_head = args.first_head;
  prompt.rows.scale = args.scale;
  return prompt;
}

// Not thread-safe; uses one stream.
class PromptPolicy {
 public:
  virtual ~PromptPolicy() = default;
  virtual const char* name() const = 0;
  // Enqueues the selection and the attention of all rows that a sequence has in a step.
  virtual void run_attention(const PromptAttention& args, Stream& stream) = 0;
};

// XAttention: keeps the tiles with the largest antidiagonal sums until they cover `threshold` of
// each row of tiles; 1 keeps all. The last 128 rows of a prompt always attend to everything,
// because a single row of them may contain the question.
struct XAttention {
  static constexpr float kThreshold = 0.95f;  // as published
  static std::size_t bytes(const PromptLimits& limits);
  static std::unique_ptr<PromptPolicy> create(Backend& backend, const PromptLimits& limits,
                                              float threshold = kThreshold);
};

// MInference: keeps columns (verticals) and diagonals (slashes), `budget` times the number of
// kernels::vertical_slash_budget(), or all.
struct MInference {
  static constexpr float kPublished = 1;
  static constexpr float kEverything = std::numeric_limits<float>::infinity();
  static kernels::VerticalSlashBudget lines(std::int64_t tokens, float budget = kPublished);
  static std::size_t bytes(const PromptLimits& limits, float budget = kPublished);
  static std::unique_ptr<PromptPolicy> create(Backend& backend, const PromptLimits& limits,
                                              float budget = kPublished);
};

}  // namespace nvllm::kvcache
