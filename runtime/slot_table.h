// SlotTable: what a rank knows of the sequence in each slot, out of the step messages alone. All of it is
// on the host; what of it the device must be told is for whoever asks (step_staging.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/paged/paged_cache.h"
#include "runtime/step.h"

namespace nvllm::runtime {

// A sequence in a slot.
struct SlotSequence {
  bool present = false;
  std::vector<std::int32_t> tokens;  // of SlotStart; later ones only the device knows
  std::int64_t computed = 0;         // tokens in the cache once the steps so far have run
  std::vector<kvcache::BlockId> blocks;
  std::int64_t resident = 0;     // of these, so many of the first ones stay on the device
  std::int64_t blocks_told = 0;  // of those, the device has so many in its table
  std::int64_t prompt_length = 0;
  std::int32_t prompt_logprobs = -1, logprobs = -1;
  bool adjusts = false, filters = false;
};

// A sequence's rows in a step.
struct StepPart {
  std::uint32_t slot = 0;
  std::int64_t first = 0;  // position of the first row
  std::int64_t rows = 0;
  bool known = false;  // its tokens are SlotSequence::tokens; else the one row's is the last drawn
  std::int64_t to_come = 0;  // rows of known tokens behind these, in later steps
  bool draws = false;        // the last row draws a token, if none are to come
  // Rows whose next token is scored: the first `scored` ones, all but what draws, or none.
  std::int64_t scored = 0;
  // Where the logits of these rows are among the step's: of what is drawn first, then of what is scored.
  std::int64_t draw_logits = 0;
  std::int64_t scored_logits = 0;
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
  std::vector<std::uint32_t>
      again_;  // slots of the last step that have not ended; kept for its memory
};

}  // namespace nvllm::runtime
