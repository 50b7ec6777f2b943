// SlotTable: the state of the sequence in each slot as a rank derives it from the step messages
// alone. It is host memory only; StepStaging sends what the device needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/paged/paged_cache.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// The sequence in a slot.
struct SlotSequence {
  bool present = false;
  // Tokens from SlotStart. Later ones are on the device only, except with pipeline stages
  // (SlotToken).
  std::vector<std::int32_t> tokens;
  std::int64_t computed = 0;  // tokens in the cache after the steps so far
  std::vector<kvcache::BlockId> blocks;
  std::int64_t resident = 0;     // how many of its first blocks stay on the device
  std::int64_t blocks_sent = 0;  // how many of `blocks` are in the device's table
  // The same two for the window group, if there is one. Entries of released blocks are arbitrary.
  std::vector<kvcache::BlockId> window_blocks;
  std::int64_t window_blocks_sent = 0;
  std::int64_t prompt_length = 0;
  std::int32_t prompt_logprobs = -1, logprobs = -1;
  bool penalties = false, top_k_top_p = false;  // whether its sampling rules need these
};

// A sequence's rows in a step.
struct ScheduledRows {
  std::uint32_t slot = 0;
  std::int64_t first = 0;  // position of the first row
  std::int64_t rows = 0;
  // Its tokens are SlotSequence::tokens; otherwise the only row reads the last sampled token.
  bool known = false;
  std::int64_t later_rows = 0;  // further rows of known tokens, left for later steps
  bool samples = false;         // whether the last row samples a token; only if later_rows is 0
  // How many of the first rows yield the logprob of the prompt's next token: all but the one that
  // samples, or none.
  std::int64_t prompt_logprobs = 0;
  // Indices of these rows' logits within the step's: sampling rows come first, then prompt rows.
  std::int64_t sample_logits = 0;
  std::int64_t prompt_logits = 0;
};

// Used by one thread. Messages that contradict earlier ones fail a CHECK.
class SlotTable {
 public:
  SlotTable(std::int64_t slots, std::int64_t max_model_len, std::int64_t block_size);

  // Applies a message; its rows count as computed.
  void apply(const StepMessage& message);

  // The parts of the last message, in its order.
  std::span<const ScheduledRows> parts() const { return parts_; }

  SlotSequence& operator[](std::uint32_t slot);

 private:
  void start(const SlotStart& start);
  void add_part(std::uint32_t slot, std::int64_t rows);
  void place_logits();

  std::int64_t max_model_len_, block_size_;
  std::vector<SlotSequence> slots_;
  std::vector<ScheduledRows> parts_;
  std::vector<std::uint32_t> repeated_;  // slots of the last step that continue; kept to reuse its
                                         // memory
};

}  // namespace nvllm::runtime
