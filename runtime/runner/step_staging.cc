#include "runtime/runner/step_staging.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "kernels/pointwise/copy.h"
#include "layers/context.h"

namespace nvllm::runtime {
namespace {

using layers::Scratch;

// Maximum new blocks in one step: a decode step adds one per slot, a prefill chunk as many as it
// fills, and a long cached prefix its whole table.
std::int64_t max_blocks(const RunnerOptions& options) {
  const std::int64_t blocks =
      options.max_num_seqs + std::max(options.rows(), options.table_blocks());
  return options.window_group > 0 ? 2 * blocks : blocks;
}

// Counts the next sequence of a batch or of a part of it.
template <typename Counts>
void add_sequence(Counts& counts, std::int64_t rows, std::int64_t kv_length) {
  if (rows == 1 && counts.decode_sequences == counts.sequences) ++counts.decode_sequences;
  ++counts.sequences;
  counts.rows += rows;
  counts.max_query_rows = std::max(counts.max_query_rows, rows);
  counts.max_kv_length = std::max(counts.max_kv_length, kv_length);
}

// Words of the largest step.
std::int64_t max_words(const RunnerOptions& options) {
  const StepShape largest{.sequences = options.max_num_seqs,
                          .rows = options.rows(),
                          .logit_rows = options.logit_rows(),
                          .window_group = options.window_group > 0};
  std::int64_t words = StepLayout(largest).blocks + max_blocks(options);
  if (options.micro_batch_rows > 0)
    words +=
        MicroBatches::max_words(options.max_num_seqs, options.rows(), options.micro_batch_rows);
  if (options.overlap_rows > 0) {
    words += MicroBatches::max_words(options.max_num_seqs, options.rows(),
                                     options.overlapped_micro_batch_rows());
  }
  return words;
}

std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}

// Also throws errors of the work before the event.
void wait_for(const Event& event, ipc::Communicator* communicator) {
  if (communicator != nullptr && !event.reached()) communicator->wait(event);
  event.synchronize();
}

}  // namespace

std::size_t StepStaging::bytes(const RunnerOptions& options) {
  const auto ints = [](std::int64_t count) { return Scratch::bytes_of(DType::i32, 1, count); };
  const std::int64_t slots = options.max_num_seqs;
  const std::size_t of_group =
      2 * ints(slots * options.table_blocks()) + Scratch::bytes_of(DType::i64, 1, options.rows());
  return ints(max_words(options)) + 2 * ints(slots) + 2 * ints(options.rows()) +
         (options.window_group > 0 ? 2 : 1) * of_group;
}

StepStaging::StepStaging(Backend& backend, const RunnerOptions& options)
    : window_group_(options.window_group > 0),
      max_blocks_(max_blocks(options)),
      micro_batch_rows_(options.micro_batch_rows),
      overlap_rows_(options.overlap_rows),
      staged_(static_cast<std::size_t>(max_words(options))),
      memory_(backend.allocate(MemoryKind::device, bytes(options), "step input")) {
  Scratch all(memory_.data(), memory_.bytes());
  const std::int64_t slots = options.max_num_seqs;
  const auto vector = [&](DType dtype, std::int64_t count) {
    return TensorView(all.allocate(dtype, 1, count).data, dtype, {count});
  };
  const auto table = [&] {
    return TensorView(all.allocate(DType::i32, slots, options.table_blocks()).data, DType::i32,
                      {slots, options.table_blocks()});
  };
  words_ = vector(DType::i32, max_words(options)).as<std::int32_t>();
  last_tokens_ = vector(DType::i32, slots);
  kv_length_ = vector(DType::i32, slots);
  table_ = table();
  block_table_ = table();
  tokens_ = vector(DType::i32, options.rows());
  positions_ = vector(DType::i32, options.rows());
  slot_mapping_ = vector(DType::i64, options.rows());
  if (window_group_) {
    window_table_ = table();
    window_block_table_ = table();
    window_slot_mapping_ = vector(DType::i64, options.rows());
  }
  for (int i = 0; i <= options.steps_ahead; ++i) loaded_.push_back(backend.create_event());
}

// Waits until few enough steps are in flight. The words could be written at once; but this limits
// how far a rank runs ahead of its device, and reports errors of the device.
std::int32_t* StepStaging::begin(ipc::Communicator* communicator) {
  wait_for(*loaded_[next_], communicator);
  return staged_.data();
}

void StepStaging::send(std::size_t words, Stream& stream) {
  NVLLM_CHECK_LE(words, staged_.size());
  kernels::write_words(reinterpret_cast<std::uint32_t*>(words_),
                       reinterpret_cast<const std::uint32_t*>(staged_.data()),
                       static_cast<std::int64_t>(words), stream);
  loaded_[next_]->record(stream);
  next_ = (next_ + 1) % loaded_.size();
}

void StepStaging::send_blocks(std::span<const ScheduledRows> parts, SlotTable& slots,
                              const kvcache::KvCache& cache, Stream& stream,
                              ipc::Communicator* communicator) {
  const auto count_new = [&] {
    std::int64_t count = 0;
    for (const ScheduledRows& part : parts) {
      const SlotSequence& sequence = slots[part.slot];
      count += static_cast<std::int64_t>(sequence.blocks.size()) - sequence.blocks_sent;
      count +=
          static_cast<std::int64_t>(sequence.window_blocks.size()) - sequence.window_blocks_sent;
    }
    return count;
  };
  const StepShape no_rows{.sequences = static_cast<std::int64_t>(parts.size()),
                          .window_group = window_group_};
  while (count_new() > max_blocks_) {
    StepWriter writer(begin(communicator), no_rows, max_blocks_);
    for (const ScheduledRows& part : parts) writer.add_blocks(part.slot, slots[part.slot]);
    writer.pad();
    if (window_group_) {
      for (const ScheduledRows& part : parts) writer.add_window_blocks(slots[part.slot]);
    }
    send(writer.finish(), stream);
    make_input(no_rows, cache, stream);
  }
}

void StepStaging::load(std::span<const ScheduledRows> parts, SlotTable& slots,
                       const StepShape& shape, std::int32_t result_buffer,
                       const kvcache::KvCache& cache, Stream& stream,
                       ipc::Communicator* communicator) {
  send_blocks(parts, slots, cache, stream, communicator);
  order_.clear();
  in_batch_order(parts, [&](const ScheduledRows& part) { order_.push_back(&part); });
  std::int32_t* const words = begin(communicator);
  words[StepLayout(shape).result_buffer] = result_buffer;
  StepWriter writer(words, shape, max_blocks_);
  for (const ScheduledRows* const part : order_) writer.add(*part, slots[part->slot]);
  writer.pad();
  if (window_group_) {
    for (const ScheduledRows* const part : order_) writer.add_window_blocks(slots[part->slot]);
  }
  parts_at_ = writer.finish();
  parts_.cut(order_, micro_batch_rows(shape));
  std::ranges::copy(parts_.words(), words + parts_at_);
  send(parts_at_ + parts_.words().size(), stream);
}

std::int64_t StepStaging::micro_batch_rows(const StepShape& shape) const {
  if (micro_batch_rows_ > 0) return micro_batch_rows_;
  const bool overlaps =
      overlap_ && overlap_rows_ > 0 && shape.rows >= overlap_rows_ && shape.max_query_rows > 1;
  return overlaps ? divide_up(shape.rows, 2) : shape.rows;
}

TensorView StepStaging::ints(std::int64_t first, std::int64_t count) const {
  return TensorView(words_ + first, DType::i32, {count});
}

void StepStaging::make_input(const StepShape& shape, const kvcache::KvCache& cache,
                             Stream& stream) const {
  NVLLM_CHECK_EQ(shape.window_group, window_group_);
  kernels::step_input(input(shape, cache), stream);
  if (window_group_) kernels::step_input(window_input(shape, cache), stream);
}

kernels::StepInput StepStaging::window_input(const StepShape& shape,
                                             const kvcache::KvCache& cache) const {
  const StepLayout at(shape);
  kernels::StepInput input = this->input(shape, cache);
  input.first_block = ints(at.first_window_block, shape.sequences);
  input.block_start = ints(at.window_block_start, shape.sequences + 1);
  input.table = window_table_;
  input.history = cache.window_tokens();
  input.block_map = {};
  input.slot_mapping = window_slot_mapping_.rows(0, shape.rows);
  input.block_table = window_block_table_.rows(0, shape.sequences);
  return input;
}

kernels::StepInput StepStaging::input(const StepShape& shape, const kvcache::KvCache& cache) const {
  const StepLayout at(shape);
  kernels::StepInput input;
  input.slots = ints(at.slots, shape.sequences);
  input.query_start = ints(at.query_start, shape.sequences + 1);
  input.first_position = ints(at.first_position, shape.sequences);
  input.first_token = ints(at.first_token, shape.sequences);
  input.first_block = ints(at.first_block, shape.sequences);
  input.block_start = ints(at.block_start, shape.sequences + 1);
  input.new_tokens = ints(at.tokens, shape.rows);
  input.new_blocks = ints(at.blocks, max_blocks_);
  input.max_query_rows = shape.max_query_rows;
  input.last_tokens = last_tokens_;
  input.table = table_;
  input.history = cache.tokens();
  input.block_map = cache.block_map();
  input.tokens = tokens_.rows(0, shape.rows);
  input.positions = positions_.rows(0, shape.rows);
  input.slot_mapping = slot_mapping_.rows(0, shape.rows);
  input.kv_length = kv_length_.rows(0, shape.sequences);
  input.block_table = block_table_.rows(0, shape.sequences);
  return input;
}

layers::Batch StepStaging::batch(const StepShape& shape) {
  const StepLayout at(shape);
  layers::Batch batch;
  batch.tokens = tokens_.rows(0, shape.rows);
  batch.positions = positions_.rows(0, shape.rows);
  batch.slot_mapping = slot_mapping_.rows(0, shape.rows);
  batch.query_start = ints(at.query_start, shape.sequences + 1);
  batch.kv_length = kv_length_.rows(0, shape.sequences);
  batch.block_table = block_table_.rows(0, shape.sequences);
  if (window_group_) {
    batch.window_slot_mapping = window_slot_mapping_.rows(0, shape.rows);
    batch.window_block_table = window_block_table_.rows(0, shape.sequences);
  }
  batch.state_slots = ints(at.slots, shape.sequences);
  if (!shape.all_logits) batch.logit_rows = ints(at.logit_rows, shape.logit_rows);
  batch.max_query_rows = shape.max_query_rows;
  batch.max_kv_length = shape.max_kv_length;
  batch.decode_sequences = shape.decode_sequences;
  batch.parts = parts_.at(words_ + parts_at_);
  return batch;
}

layers::SampleStep StepStaging::sample_step(const StepShape& shape, std::int64_t rows,
                                            TensorView history) const {
  const StepLayout at(shape);
  layers::SampleStep step;
  step.slots = ints(at.sample_slots, rows);
  step.positions = ints(at.sample_positions, rows);
  step.targets = ints(at.targets, rows);
  step.history = history;
  // Sampling rows come first, in the order of the sequences; the rows after them have no slot, so
  // their tables are not read.
  step.block_table = block_table_.rows(0, rows);
  return step;
}

StepShape shape_of(std::span<const ScheduledRows> parts) {
  StepShape shape;
  in_batch_order(parts, [&](const ScheduledRows& part) {
    add_sequence(shape, part.rows, part.first + part.rows);
    shape.logit_rows += part.prompt_logprobs + (part.samples ? 1 : 0);
  });
  return shape;
}

StepWriter::StepWriter(std::int32_t* words, const StepShape& shape, std::int64_t max_blocks)
    : words_(words), shape_(shape), at_(shape), max_blocks_(max_blocks) {}

void StepWriter::add(const ScheduledRows& part, SlotSequence& sequence) {
  const std::int64_t row = rows_, end = part.first + part.rows;
  const auto slot = static_cast<std::int32_t>(part.slot);
  const std::int32_t* const tokens = sequence.tokens.data() + part.first;
  add_sequence(slot, part.first, part.rows, part.known ? tokens_ : -1, &sequence);
  if (part.known) {
    std::copy_n(tokens, part.rows, words_ + at_.tokens + tokens_);
    tokens_ += part.rows;
  }
  if (part.samples) set_logits(part.sample_logits, row + part.rows - 1, slot, end, -1);
  for (std::int64_t i = 0; i < part.prompt_logprobs; ++i) {
    set_logits(part.prompt_logits + i, row + i, -1, part.first + i + 1, tokens[i + 1]);
  }
}

void StepWriter::add_blocks(std::uint32_t slot, SlotSequence& sequence) {
  add_sequence(static_cast<std::int32_t>(slot), 0, 0, 0, &sequence);
}

void StepWriter::pad() {
  while (sequences_ < shape_.sequences) {
    if (shape_.all_logits) set_logits(sequences_, rows_, -1, 0, -1);
    add_sequence(-1, 0, 1, 0, nullptr);
  }
  NVLLM_CHECK_EQ(rows_, shape_.rows);
  words_[at_.query_start + sequences_] = narrow(rows_);
  words_[at_.block_start + sequences_] = narrow(blocks_);
}

void StepWriter::add_window_blocks(SlotSequence& sequence) {
  const std::int64_t s = window_sequences_++;
  words_[at_.first_window_block + s] = narrow(sequence.window_blocks_sent);
  words_[at_.window_block_start + s] = narrow(blocks_);
  append_new_blocks(sequence.window_blocks, sequence.window_blocks_sent);
}

std::size_t StepWriter::finish() {
  if (shape_.window_group) {
    for (; window_sequences_ < shape_.sequences; ++window_sequences_) {
      words_[at_.first_window_block + window_sequences_] = 0;
      words_[at_.window_block_start + window_sequences_] = narrow(blocks_);
    }
    words_[at_.window_block_start + shape_.sequences] = narrow(blocks_);
  }
  return static_cast<std::size_t>(at_.blocks + blocks_);
}

void StepWriter::append_new_blocks(const std::vector<kvcache::BlockId>& blocks,
                                   std::int64_t& sent) {
  const std::int64_t count =
      std::min(static_cast<std::int64_t>(blocks.size()) - sent, max_blocks_ - blocks_);
  std::copy_n(blocks.begin() + sent, count, words_ + at_.blocks + blocks_);
  sent += count;
  blocks_ += count;
}

void StepWriter::add_sequence(std::int32_t slot, std::int64_t first, std::int64_t rows,
                              std::int64_t token, SlotSequence* blocks_of) {
  const std::int64_t s = sequences_++;
  words_[at_.slots + s] = slot;
  words_[at_.query_start + s] = narrow(rows_);
  words_[at_.first_position + s] = narrow(first);
  words_[at_.first_token + s] = narrow(token);
  words_[at_.first_block + s] = blocks_of != nullptr ? narrow(blocks_of->blocks_sent) : 0;
  words_[at_.block_start + s] = narrow(blocks_);
  rows_ += rows;
  if (blocks_of != nullptr) append_new_blocks(blocks_of->blocks, blocks_of->blocks_sent);
}

void StepWriter::set_logits(std::int64_t logits, std::int64_t row, std::int32_t slot,
                            std::int64_t position, std::int32_t target) {
  words_[at_.logit_rows + logits] = narrow(row);
  words_[at_.sample_slots + logits] = slot;
  words_[at_.sample_positions + logits] = narrow(position);
  words_[at_.targets + logits] = target;
}

std::int64_t MicroBatches::max_words(std::int64_t sequences, std::int64_t rows,
                                     std::int64_t max_rows) {
  const std::int64_t parts = divide_up(rows, max_rows);
  return parts < 2 ? 0 : 2 * (sequences + parts) + parts;
}

void MicroBatches::cut(std::span<const ScheduledRows* const> sequences, std::int64_t max_rows) {
  words_.clear();
  parts_.clear();
  part_ = {};
  std::int64_t rows = 0;
  for (const ScheduledRows* const sequence : sequences) rows += sequence->rows;
  if (rows <= max_rows) return;
  std::int64_t row = 0;  // index in the batch
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const ScheduledRows& sequence = *sequences[s];
    for (std::int64_t done = 0; done < sequence.rows;) {
      if (part_.rows == max_rows) end_part(row, static_cast<std::int64_t>(s));
      const std::int64_t count = std::min(sequence.rows - done, max_rows - part_.rows);
      done += count;
      starts_.push_back(static_cast<std::int32_t>(part_.rows));
      lengths_.push_back(static_cast<std::int32_t>(sequence.first + done));
      add_sequence(part_, count, sequence.first + done);
      row += count;
    }
  }
  end_part(row, 0);
}

void MicroBatches::end_part(std::int64_t next_row, std::int64_t next_sequence) {
  starts_.push_back(static_cast<std::int32_t>(part_.rows));
  words_.insert(words_.end(), starts_.begin(), starts_.end());
  words_.insert(words_.end(), lengths_.begin(), lengths_.end());
  starts_.clear();
  lengths_.clear();
  parts_.push_back(part_);
  part_ = {.first_row = next_row, .first_sequence = next_sequence};
}

std::span<const layers::MicroBatch> MicroBatches::at(std::int32_t* words) {
  for (layers::MicroBatch& part : parts_) {
    part.query_start = TensorView(words, DType::i32, {part.sequences + 1});
    part.kv_length = TensorView(words + part.sequences + 1, DType::i32, {part.sequences});
    words += 2 * part.sequences + 1;
  }
  return parts_;
}

}  // namespace nvllm::runtime
