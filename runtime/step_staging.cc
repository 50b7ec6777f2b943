#include "runtime/step_staging.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "layers/scratch.h"

namespace nvllm::runtime {
namespace {

using layers::Scratch;

// New blocks that one step brings: a decode step brings one per slot at most, a prompt's chunk as many as
// it fills, and a long cached prefix its table.
std::int64_t most_blocks(const StagingLimits& limits) {
  return limits.slots + std::max(limits.rows, limits.table_blocks);
}

// Also throws what went wrong on the way to it.
void wait_for(const Event& event, ipc::Communicator* communicator) {
  if (communicator != nullptr && !event.reached()) communicator->wait(event);
  event.synchronize();
}

TensorView first(TensorView tensor, std::int64_t count) {
  tensor.shape[0] = count;
  return tensor;
}

}  // namespace

// Where a step's numbers lie, in words of 32 bits.
struct StepStaging::Layout {
  explicit Layout(const StepShape& shape)
      : slots(0),
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

  std::int64_t slots, query_start, first_position, first_token, first_block, block_start;
  std::int64_t logit_rows, draw_slots, draw_positions, targets;
  std::int64_t tokens;  // of rows whose token is known to the host
  std::int64_t blocks;  // new ones; only as many as there are travel

  // Of the largest step.
  static std::int64_t words(const StagingLimits& limits) {
    const StepShape most{
        .sequences = limits.slots, .rows = limits.rows, .logit_rows = limits.logit_rows};
    return Layout(most).blocks + most_blocks(limits);
  }
};

StepShape shape_of(std::span<const StepPart> parts) {
  StepShape shape;
  shape.sequences = static_cast<std::int64_t>(parts.size());
  for (const StepPart& part : parts) {
    shape.rows += part.rows;
    shape.logit_rows += part.scored + (part.draws ? 1 : 0);
    shape.max_query_rows = std::max(shape.max_query_rows, part.rows);
    shape.max_kv_length = std::max(shape.max_kv_length, part.first + part.rows);
  }
  return shape;
}

std::size_t StepStaging::bytes(const StagingLimits& limits) {
  const auto ints = [](std::int64_t count) { return Scratch::bytes_of(DType::i32, 1, count); };
  return ints(Layout::words(limits)) + 2 * ints(limits.slots) +
         2 * ints(limits.slots * limits.table_blocks) + 2 * ints(limits.rows) +
         Scratch::bytes_of(DType::i64, 1, limits.rows);
}

StepStaging::StepStaging(Backend& backend, const StagingLimits& limits, int buffers)
    : backend_(backend),
      limits_(limits),
      memory_(backend.allocate(MemoryKind::device, bytes(limits), "step input")) {
  Scratch all(memory_.data(), memory_.bytes());
  const auto vector = [&](DType dtype, std::int64_t count) {
    return TensorView(all.take(dtype, 1, count).data, dtype, {count});
  };
  const auto table = [&] {
    return TensorView(all.take(DType::i32, limits.slots, limits.table_blocks).data, DType::i32,
                      {limits.slots, limits.table_blocks});
  };
  words_ = vector(DType::i32, Layout::words(limits)).as<std::int32_t>();
  last_tokens_ = vector(DType::i32, limits.slots);
  kv_length_ = vector(DType::i32, limits.slots);
  table_ = table();
  block_table_ = table();
  tokens_ = vector(DType::i32, limits.rows);
  positions_ = vector(DType::i32, limits.rows);
  places_ = vector(DType::i64, limits.rows);
  const std::size_t staged = static_cast<std::size_t>(Layout::words(limits)) * sizeof(std::int32_t);
  for (int i = 0; i < buffers; ++i) {
    staged_.push_back(
        {backend.allocate(MemoryKind::pinned, staged, "step input"), backend.create_event()});
  }
}

std::int32_t* StepStaging::begin(ipc::Communicator* communicator) {
  wait_for(*staged_[next_].copied, communicator);
  return static_cast<std::int32_t*>(staged_[next_].memory.data());
}

void StepStaging::send(std::size_t words, Stream& stream) {
  Staged& staged = staged_[next_];
  NVLLM_CHECK_LE(words * sizeof(std::int32_t), staged.memory.bytes());
  backend_.copy(words_, staged.memory.data(), words * sizeof(std::int32_t), stream);
  staged.copied->record(stream);
  next_ = (next_ + 1) % staged_.size();
}

namespace {

// Writes sequences and their new blocks into a step.
struct SequenceWriter {
  std::int32_t *slots, *query_start, *first_position, *first_token, *first_block, *block_start;
  std::int32_t* blocks;
  std::int32_t rows = 0, block_count = 0;

  void add(std::int32_t slot, std::int64_t first, std::int64_t row_count, std::int64_t token,
           std::span<const kvcache::BlockId> new_blocks, std::int64_t block_index) {
    *slots++ = slot;
    *query_start++ = rows;
    *first_position++ = static_cast<std::int32_t>(first);
    *first_token++ = static_cast<std::int32_t>(token);
    *first_block++ = static_cast<std::int32_t>(block_index);
    *block_start++ = block_count;
    std::copy(new_blocks.begin(), new_blocks.end(), blocks + block_count);
    rows += static_cast<std::int32_t>(row_count);
    block_count += static_cast<std::int32_t>(new_blocks.size());
  }
  // Behind the last.
  void end() { *query_start = rows, *block_start = block_count; }
};

std::span<const kvcache::BlockId> new_blocks_of(const SlotSequence& sequence, std::int64_t most) {
  const std::span<const kvcache::BlockId> all(sequence.blocks);
  const auto fresh = all.subspan(static_cast<std::size_t>(sequence.blocks_told));
  return fresh.first(std::min(fresh.size(), static_cast<std::size_t>(most)));
}

}  // namespace

void StepStaging::tell_blocks(std::span<const StepPart> parts, SlotTable& slots, TensorView history,
                              Stream& stream, ipc::Communicator* communicator) {
  const auto count_new = [&] {
    std::int64_t count = 0;
    for (const StepPart& part : parts) {
      const SlotSequence& sequence = slots[part.slot];
      count += static_cast<std::int64_t>(sequence.blocks.size()) - sequence.blocks_told;
    }
    return count;
  };
  const std::int64_t most = most_blocks(limits_);
  while (count_new() > most) {
    const StepShape shape{.sequences = static_cast<std::int64_t>(parts.size())};
    const Layout at(shape);
    std::int32_t* const words = begin(communicator);
    SequenceWriter writer{words + at.slots,       words + at.query_start, words + at.first_position,
                          words + at.first_token, words + at.first_block, words + at.block_start,
                          words + at.blocks};
    for (const StepPart& part : parts) {
      SlotSequence& sequence = slots[part.slot];
      const auto blocks = new_blocks_of(sequence, most - writer.block_count);
      writer.add(static_cast<std::int32_t>(part.slot), 0, 0, 0, blocks, sequence.blocks_told);
      sequence.blocks_told += static_cast<std::int64_t>(blocks.size());
    }
    writer.end();
    send(static_cast<std::size_t>(at.blocks + writer.block_count), stream);
    kernels::step_input(input(shape, history), stream);
  }
}

void StepStaging::load(std::span<const StepPart> parts, SlotTable& slots, const StepShape& shape,
                       TensorView history, Stream& stream, ipc::Communicator* communicator) {
  tell_blocks(parts, slots, history, stream, communicator);
  const Layout at(shape);
  std::int32_t* const words = begin(communicator);
  SequenceWriter writer{words + at.slots,       words + at.query_start, words + at.first_position,
                        words + at.first_token, words + at.first_block, words + at.block_start,
                        words + at.blocks};
  std::int32_t token = 0;
  const auto set_logits = [&](std::int64_t logits, std::int64_t row, std::int32_t slot,
                              std::int64_t position, std::int32_t target) {
    words[at.logit_rows + logits] = static_cast<std::int32_t>(row);
    words[at.draw_slots + logits] = slot;
    words[at.draw_positions + logits] = static_cast<std::int32_t>(position);
    words[at.targets + logits] = target;
  };
  for (const bool draws : {true, false}) {
    for (const StepPart& part : parts) {
      if (part.draws != draws) continue;
      SlotSequence& sequence = slots[part.slot];
      const auto slot = static_cast<std::int32_t>(part.slot);
      const std::int32_t row = writer.rows;
      writer.add(slot, part.first, part.rows, part.known ? token : -1,
                 new_blocks_of(sequence, most_blocks(limits_)), sequence.blocks_told);
      sequence.blocks_told = static_cast<std::int64_t>(sequence.blocks.size());
      const std::int32_t* const tokens = sequence.tokens.data() + part.first;
      if (part.known) {
        std::copy_n(tokens, part.rows, words + at.tokens + token);
        token += static_cast<std::int32_t>(part.rows);
      }
      const std::int64_t end = part.first + part.rows;
      if (draws) set_logits(part.draw_logits, row + part.rows - 1, slot, end, -1);
      for (std::int64_t i = 0; i < part.scored; ++i) {
        set_logits(part.scored_logits + i, row + i, -1, part.first + i + 1, tokens[i + 1]);
      }
    }
  }
  for (std::int64_t s = static_cast<std::int64_t>(parts.size()); s < shape.sequences; ++s) {
    if (shape.all_logits) set_logits(s, s, -1, 0, -1);
    writer.add(-1, 0, 1, 0, {}, 0);
  }
  writer.end();
  NVLLM_CHECK_EQ(writer.rows, shape.rows);
  send(static_cast<std::size_t>(at.blocks + writer.block_count), stream);
}

TensorView StepStaging::ints(std::int64_t first, std::int64_t count) const {
  return TensorView(words_ + first, DType::i32, {count});
}

kernels::StepInput StepStaging::input(const StepShape& shape, TensorView history) const {
  const Layout at(shape);
  kernels::StepInput input;
  input.slots = ints(at.slots, shape.sequences);
  input.query_start = ints(at.query_start, shape.sequences + 1);
  input.first_position = ints(at.first_position, shape.sequences);
  input.first_token = ints(at.first_token, shape.sequences);
  input.first_block = ints(at.first_block, shape.sequences);
  input.block_start = ints(at.block_start, shape.sequences + 1);
  input.new_tokens = ints(at.tokens, shape.rows);
  input.new_blocks = ints(at.blocks, most_blocks(limits_));
  input.max_query_rows = shape.max_query_rows;
  input.last_tokens = last_tokens_;
  input.table = table_;
  input.history = history;
  input.tokens = first(tokens_, shape.rows);
  input.positions = first(positions_, shape.rows);
  input.places = first(places_, shape.rows);
  input.kv_length = first(kv_length_, shape.sequences);
  input.block_table = first(block_table_, shape.sequences);
  return input;
}

layers::Batch StepStaging::batch(const StepShape& shape) const {
  const Layout at(shape);
  layers::Batch batch;
  batch.tokens = first(tokens_, shape.rows);
  batch.positions = first(positions_, shape.rows);
  batch.slots = first(places_, shape.rows);
  batch.query_start = ints(at.query_start, shape.sequences + 1);
  batch.kv_length = first(kv_length_, shape.sequences);
  batch.block_table = first(block_table_, shape.sequences);
  if (!shape.all_logits) batch.logit_rows = ints(at.logit_rows, shape.logit_rows);
  batch.max_query_rows = shape.max_query_rows;
  batch.max_kv_length = shape.max_kv_length;
  return batch;
}

layers::SampleStep StepStaging::sample_step(const StepShape& shape, std::int64_t rows,
                                            TensorView history) const {
  const Layout at(shape);
  layers::SampleStep step;
  step.slots = ints(at.draw_slots, rows);
  step.positions = ints(at.draw_positions, rows);
  step.targets = ints(at.targets, rows);
  step.history = history;
  // Rows that draw are the first, in the order of the sequences; those behind them have no slot, so that
  // their tables are not read.
  step.block_table = first(block_table_, rows);
  return step;
}

}  // namespace nvllm::runtime
