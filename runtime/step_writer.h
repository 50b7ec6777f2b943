// StepWriter: a step as the host says it to the device: a few numbers per sequence, in one row of words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/slot_table.h"

namespace nvllm::runtime {

// How many of everything a step has; a captured graph's includes padding. Where the numbers lie follows
// from it alone.
struct StepShape {
  std::int64_t sequences = 0;
  std::int64_t rows = 0;
  std::int64_t logit_rows = 0;
  std::int64_t max_query_rows = 0;
  std::int64_t max_kv_length = 0;
  bool all_logits = false;  // every row's logits are wanted, in order
};

// The shape of a step without padding.
StepShape shape_of(std::span<const StepPart> parts);

// Where a step's numbers lie, in words of 32 bits (see kernels::StepInput and layers::SampleStep).
struct StepLayout {
  explicit StepLayout(const StepShape& shape)
      : results(0),
        slots(results + 1),
        query_start(slots + shape.sequences),
        first_position(query_start + shape.sequences + 1),
        first_token(first_position + shape.sequences),
        first_block(first_token + shape.sequences),
        block_start(first_block + shape.sequences),
        logit_rows(block_start + shape.sequences + 1),
        draw_slots(logit_rows + shape.logit_rows),
        draw_positions(draw_slots + shape.logit_rows),
        targets(draw_positions + shape.logit_rows),
        tokens(targets + shape.logit_rows),
        blocks(tokens + shape.rows) {}

  std::int64_t results;  // where the step leaves what it gives
  std::int64_t slots, query_start, first_position, first_token, first_block, block_start;
  std::int64_t logit_rows, draw_slots, draw_positions, targets;
  std::int64_t tokens;  // of rows whose token is known to the host
  std::int64_t blocks;  // new ones; only as many as there are travel
};

// Writes a step of this shape, sequence by sequence: those that draw, then the others, then padding. So the
// logits of a sequence that draws have its number.
class StepWriter {
 public:
  // most_blocks: how many new blocks there is room for.
  StepWriter(std::int32_t* words, const StepShape& shape, std::int64_t most_blocks);

  // A sequence's rows, what is wanted of their logits, and its new blocks, which are told then.
  void add(const StepPart& part, SlotSequence& sequence);
  // Only new blocks of a sequence, as many as there is room for.
  void add_blocks(std::uint32_t slot, SlotSequence& sequence);
  // Padding up to the shape, one row each. Returns how many words the step has.
  std::size_t finish();

 private:
  // `news`: whose new blocks are told; nullptr: nobody's.
  void add_sequence(std::int32_t slot, std::int64_t first, std::int64_t rows, std::int64_t token,
                    SlotSequence* news);
  void set_logits(std::int64_t logits, std::int64_t row, std::int32_t slot, std::int64_t position,
                  std::int32_t target);

  std::int32_t* words_;
  const StepShape shape_;
  const StepLayout at_;
  const std::int64_t most_blocks_;
  std::int64_t sequences_ = 0, rows_ = 0, tokens_ = 0, blocks_ = 0;  // so far
};

}  // namespace nvllm::runtime
