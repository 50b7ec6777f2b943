// SlotTable: what a rank knows of the sequence in each slot, from the step messages alone. All of
// it is on the host; StepStaging sends to the device what has to be there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/paged/paged_cache.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// A sequence in a slot.
struct SlotSequence {
  bool present = false;
  // Of SlotStart; later ones only the device knows, but with pipeline stages (SlotToken).
  std::vector<std::int32_t> tokens;
  std::int64_t computed = 0;  // tokens in the cache once the steps so far have run
  std::vector<kvcache::BlockId> blocks;
  std::int64_t resident = 0;     // of these, so many of the first ones stay on the device
  std::int64_t blocks_sent = 0;  // so many of `blocks` are in the table on the device
  // The same two of the group of windows, if there is one. Where a block was released, any is.
  std::vector<kvcache::BlockId> window_blocks;
  std::int64_t window_blocks_sent = 0;
  std::int64_t prompt_length = 0;
  std::int32_t prompt_logprobs = -1, logprobs = -1;
  bool penalties = false, top_k_top_p = false;  // whether its sampling rules need them
};

// A sequence's rows in a step.
struct StepPart {
  std::uint32_t slot = 0;
  std::int64_t first = 0;  // position of the first row
  std::int64_t rows = 0;
  // Its tokens are SlotSequence::tokens; else the one row reads the last sampled token.
  bool known = false;
  std::int64_t to_come = 0;  // rows of known tokens behind these, in later steps
  bool samples = false;      // the last row samples a token, if none are to come
  // So many rows, the first, give the logprob of the prompt's next token: all but the one that
  // samples, or none.
  std::int64_t prompt_logprobs = 0;
  // Where the logits of these rows are among the step's: first those that sample, then those for
  // prompts.
  std::int64_t sample_logits = 0;
  std::int64_t prompt_logits = 0;
};

// Used by one thread. A message that contradicts those before it is a failed check.
class SlotTable {
 public:
  SlotTable(std::int64_t slots, std::int64_t max_model_len, std::int64_t block_size);

  // Follows a message; its rows count as computed.
  void follow(const StepMessage& message);

  // Of the last message, in its order.
  std::span<const StepPart> parts() const { return parts_; }

  SlotSequence& operator[](std::uint32_t slot);

 private:
  void start(const SlotStart& start);
  void add_part(std::uint32_t slot, std::int64_t rows);
  void place_logits();

  std::int64_t max_model_len_, block_size_;
  std::vector<SlotSequence> slots_;
  std::vector<StepPart> parts_;
  std::vector<std::uint32_t> repeated_;  // slots of the last step that go on; kept for its memory
};

}  // namespace nvllm::runtime
