// StepStaging: sends a step's input to the device. A step is written as one array of 32-bit words,
// passed as kernel parameters; the device derives the forward pass's input from them
// (kernels/pointwise/step_input.h).
//
//   StepShape, StepLayout   how many numbers a step has, and where each lies in its words
//   StepWriter              writes the words, sequence by sequence
//   MicroBatches            cuts the rows, for a pass that takes all rows layer by layer
//   StepStaging             the buffers on both sides, and the device's state of each slot
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "ipc/collective/communicator.h"
#include "kernels/pointwise/step_input.h"
#include "kvcache/kv_cache.h"
#include "layers/context.h"
#include "layers/sampler.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/slot_table.h"

namespace nvllm::runtime {

// How many sequences, rows, etc. a step has; a captured graph's shape includes padding. It alone
// determines the layout of the words.
struct StepShape {
  std::int64_t sequences = 0;
  std::int64_t rows = 0;
  std::int64_t logit_rows = 0;
  std::int64_t max_query_rows = 0;
  std::int64_t max_kv_length = 0;
  std::int64_t decode_sequences = 0;  // as in layers::Batch
  bool all_logits = false;            // logits of every row are computed, in order
  bool window_group = false;          // block tables of the window group are included
};

// Calls with each of a step's parts in the order in which a batch has them: those that sample come
// first.
template <typename Call>
void in_batch_order(std::span<const ScheduledRows> parts, const Call& call) {
  for (const bool samples : {true, false}) {
    for (const ScheduledRows& part : parts) {
      if (part.samples == samples) call(part);
    }
  }
}

// The shape of a step without padding.
StepShape shape_of(std::span<const ScheduledRows> parts);

// Word offsets of a step's parts (see kernels::StepInput and layers::SampleStep).
struct StepLayout {
  explicit StepLayout(const StepShape& shape)
      : result_buffer(0),
        slots(result_buffer + 1),
        query_start(slots + shape.sequences),
        first_position(query_start + shape.sequences + 1),
        first_token(first_position + shape.sequences),
        first_block(first_token + shape.sequences),
        block_start(first_block + shape.sequences),
        first_window_block(block_start + shape.sequences + 1),
        window_block_start(first_window_block + (shape.window_group ? shape.sequences : 0)),
        logit_rows(window_block_start + (shape.window_group ? shape.sequences + 1 : 0)),
        sample_slots(logit_rows + shape.logit_rows),
        sample_positions(sample_slots + shape.logit_rows),
        targets(sample_positions + shape.logit_rows),
        tokens(targets + shape.logit_rows),
        blocks(tokens + shape.rows) {}

  std::int64_t result_buffer;  // StepResults::next_buffer()
  std::int64_t slots, query_start, first_position, first_token, first_block, block_start;
  std::int64_t first_window_block, window_block_start;  // of the window group, if there is one
  std::int64_t logit_rows, sample_slots, sample_positions, targets;
  std::int64_t tokens;  // of rows whose token the host knows
  // New blocks; only as many words as there are blocks are sent. Those of the window group come
  // last.
  std::int64_t blocks;
};

// Writes a step of this shape, sequence by sequence: those that sample, then the others, then
// padding. So the logits of a sequence that samples have the sequence's index.
class StepWriter {
 public:
  // max_blocks: how many new blocks fit.
  StepWriter(std::int32_t* words, const StepShape& shape, std::int64_t max_blocks);

  // Adds a sequence's rows, which logits they need, and its new blocks, which then count as sent.
  void add(const ScheduledRows& part, SlotSequence& sequence);
  // Adds only a sequence's new blocks, as many as fit.
  void add_blocks(std::uint32_t slot, SlotSequence& sequence);
  // Pads to the shape, with sequences of one row.
  void pad();
  // Call last, in the order of the sequences, if there is a window group: adds a sequence's new
  // blocks there, as many as fit.
  void add_window_blocks(SlotSequence& sequence);
  // Returns the number of words written.
  std::size_t finish();

 private:
  // Appends the blocks that were not sent yet, as many as fit.
  void append_new_blocks(const std::vector<kvcache::BlockId>& blocks, std::int64_t& sent);
  // blocks_of: the sequence whose new blocks are sent; nullptr: none.
  void add_sequence(std::int32_t slot, std::int64_t first, std::int64_t rows, std::int64_t token,
                    SlotSequence* blocks_of);
  void set_logits(std::int64_t logits, std::int64_t row, std::int32_t slot, std::int64_t position,
                  std::int32_t target);

  std::int32_t* words_;
  const StepShape shape_;
  const StepLayout at_;
  const std::int64_t max_blocks_;
  std::int64_t sequences_ = 0, rows_ = 0, tokens_ = 0, blocks_ = 0;  // so far
  std::int64_t window_sequences_ = 0;
};

// Splits a step's rows into parts of at most max_rows, for a pass in which each layer processes all
// parts before the next layer starts, or overlaps two parts (model/decoder.h). Used by one thread;
// kept to reuse its memory.
class MicroBatches {
 public:
  // Maximum words of a step's parts: each sequence is in one part, plus one more for each cut.
  static std::int64_t max_words(std::int64_t sequences, std::int64_t rows, std::int64_t max_rows);

  // sequences: in the batch's order. There are no parts if one is enough.
  void cut(std::span<const ScheduledRows* const> sequences, std::int64_t max_rows);

  // For each part its query_start, followed by its kv_length.
  std::span<const std::int32_t> words() const { return words_; }
  // The parts, whose words are at this address.
  std::span<const layers::MicroBatch> at(std::int32_t* words);

 private:
  void end_part(std::int64_t next_row, std::int64_t next_sequence);

  std::vector<std::int32_t> words_, starts_, lengths_;
  std::vector<layers::MicroBatch> parts_;
  layers::MicroBatch part_;  // the part being filled
};

// The device keeps each slot's block table and last token. A sequence's new blocks are added to its
// table by the next step that has rows of it. Used by one thread, with one stream.
class StepStaging {
 public:
  // steps_ahead + 1 steps may be in flight to the device; the next one waits for the first.
  StepStaging(Backend& backend, const RunnerOptions& options);

  // Whether steps of at least RunnerOptions::overlap_rows rows are split in two; initially true.
  void set_overlap(bool overlap) { overlap_ = overlap; }

  // Device memory of one object ("step input").
  static std::size_t bytes(const RunnerOptions& options);

  // Sends a step. result_buffer: receives its tokens (StepResults::next_buffer()).
  void load(std::span<const ScheduledRows> parts, SlotTable& slots, const StepShape& shape,
            std::int32_t result_buffer, const kvcache::KvCache& cache, Stream& stream,
            ipc::Communicator* communicator);

  // Enqueues the kernel that computes the batch of a step, for any step of this shape.
  void make_input(const StepShape& shape, const kvcache::KvCache& cache, Stream& stream) const;
  // The batch of the step that was loaded last.
  layers::Batch batch(const StepShape& shape);
  // The first `rows` logit rows: slots, positions, targets, history and tables.
  layers::SampleStep sample_step(const StepShape& shape, std::int64_t rows,
                                 TensorView history) const;
  TensorView last_tokens() const { return last_tokens_; }
  // load()'s result_buffer of a step of this shape: [1], int32.
  TensorView result_buffer(const StepShape& shape) const {
    return ints(StepLayout(shape).result_buffer, 1);
  }

 private:
  // Rows per part of such a step.
  std::int64_t micro_batch_rows(const StepShape& shape) const;
  std::int32_t* begin(ipc::Communicator* communicator);
  void send(std::size_t words, Stream& stream);
  // Sends new blocks to the tables in steps without rows, until the rest fits in one step.
  void send_blocks(std::span<const ScheduledRows> parts, SlotTable& slots,
                   const kvcache::KvCache& cache, Stream& stream, ipc::Communicator* communicator);
  TensorView ints(std::int64_t first, std::int64_t count) const;
  // The arguments of the kernel that reads the words. The window group has a call of its own, with
  // its blocks; its other outputs are the same.
  kernels::StepInput input(const StepShape& shape, const kvcache::KvCache& cache) const;
  kernels::StepInput window_input(const StepShape& shape, const kvcache::KvCache& cache) const;

  const bool window_group_;
  const std::int64_t max_blocks_;                       // new blocks in one step
  const std::int64_t micro_batch_rows_, overlap_rows_;  // as in RunnerOptions
  bool overlap_ = true;
  MicroBatches parts_;
  std::vector<std::int32_t> staged_;            // the step being written
  std::vector<std::unique_ptr<Event>> loaded_;  // of the last steps, in a ring
  std::size_t next_ = 0;
  Buffer memory_;
  std::int32_t* words_ = nullptr;            // the staged words on the device
  std::vector<const ScheduledRows*> order_;  // a step's sequences in the order of its batch
  std::size_t parts_at_ = 0;                 // offset of the parts' words
  TensorView last_tokens_, table_;
  // For the window group, if there is one.
  TensorView window_table_, window_slot_mapping_, window_block_table_;
  TensorView tokens_, positions_, slot_mapping_, kv_length_, block_table_;  // of maximum size
};

}  // namespace nvllm::runtime
