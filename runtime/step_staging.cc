#include "runtime/step_staging.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/pointwise/copy.h"
#include "layers/scratch.h"

namespace nvllm::runtime {
namespace {

using layers::Scratch;

// New blocks that one step brings: a decode step brings one per slot at most, a prompt's chunk as many as
// it fills, and a long cached prefix its table.
std::int64_t most_blocks(const StagingLimits& limits) {
  return limits.slots + std::max(limits.rows, limits.table_blocks);
}

// Of the largest step.
std::int64_t most_words(const StagingLimits& limits) {
  const StepShape most{
      .sequences = limits.slots, .rows = limits.rows, .logit_rows = limits.logit_rows};
  std::int64_t words = StepLayout(most).blocks + most_blocks(limits);
  if (limits.part_rows > 0) {
    words += RowParts::most_words(limits.slots, limits.rows, limits.part_rows);
  }
  return words;
}

// Also throws what went wrong on the way to it.
void wait_for(const Event& event, ipc::Communicator* communicator) {
  if (communicator != nullptr && !event.reached()) communicator->wait(event);
  event.synchronize();
}

}  // namespace

std::size_t StepStaging::bytes(const StagingLimits& limits) {
  const auto ints = [](std::int64_t count) { return Scratch::bytes_of(DType::i32, 1, count); };
  return ints(most_words(limits)) + 2 * ints(limits.slots) +
         2 * ints(limits.slots * limits.table_blocks) + 2 * ints(limits.rows) +
         Scratch::bytes_of(DType::i64, 1, limits.rows);
}

StepStaging::StepStaging(Backend& backend, const StagingLimits& limits, int steps)
    : limits_(limits),
      parts_(limits.part_rows > 0 ? limits.part_rows : limits.rows),
      staged_(static_cast<std::size_t>(most_words(limits))),
      memory_(backend.allocate(MemoryKind::device, bytes(limits), "step input")) {
  Scratch all(memory_.data(), memory_.bytes());
  const auto vector = [&](DType dtype, std::int64_t count) {
    return TensorView(all.take(dtype, 1, count).data, dtype, {count});
  };
  const auto table = [&] {
    return TensorView(all.take(DType::i32, limits.slots, limits.table_blocks).data, DType::i32,
                      {limits.slots, limits.table_blocks});
  };
  words_ = vector(DType::i32, most_words(limits)).as<std::int32_t>();
  last_tokens_ = vector(DType::i32, limits.slots);
  kv_length_ = vector(DType::i32, limits.slots);
  table_ = table();
  block_table_ = table();
  tokens_ = vector(DType::i32, limits.rows);
  positions_ = vector(DType::i32, limits.rows);
  places_ = vector(DType::i64, limits.rows);
  for (int i = 0; i < steps; ++i) loaded_.push_back(backend.create_event());
}

// The words could be written at once; but no rank goes further ahead of its device, and this is where it hears
// of what went wrong there.
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

void StepStaging::tell_blocks(std::span<const StepPart> parts, SlotTable& slots,
                              const kvcache::KvCache& cache, Stream& stream,
                              ipc::Communicator* communicator) {
  const auto count_new = [&] {
    std::int64_t count = 0;
    for (const StepPart& part : parts) {
      const SlotSequence& sequence = slots[part.slot];
      count += static_cast<std::int64_t>(sequence.blocks.size()) - sequence.blocks_told;
    }
    return count;
  };
  const StepShape no_rows{.sequences = static_cast<std::int64_t>(parts.size())};
  while (count_new() > most_blocks(limits_)) {
    StepWriter writer(begin(communicator), no_rows, most_blocks(limits_));
    for (const StepPart& part : parts) writer.add_blocks(part.slot, slots[part.slot]);
    send(writer.finish(), stream);
    kernels::step_input(input(no_rows, cache), stream);
  }
}

void StepStaging::load(std::span<const StepPart> parts, SlotTable& slots, const StepShape& shape,
                       std::int32_t results, const kvcache::KvCache& cache, Stream& stream,
                       ipc::Communicator* communicator) {
  tell_blocks(parts, slots, cache, stream, communicator);
  order_.clear();
  for (const bool draws : {true, false}) {
    for (const StepPart& part : parts) {
      if (part.draws == draws) order_.push_back(&part);
    }
  }
  std::int32_t* const words = begin(communicator);
  words[StepLayout(shape).results] = results;
  StepWriter writer(words, shape, most_blocks(limits_));
  for (const StepPart* const part : order_) writer.add(*part, slots[part->slot]);
  parts_at_ = writer.finish();
  parts_.cut(order_);
  std::ranges::copy(parts_.words(), words + parts_at_);
  send(parts_at_ + parts_.words().size(), stream);
}

TensorView StepStaging::ints(std::int64_t first, std::int64_t count) const {
  return TensorView(words_ + first, DType::i32, {count});
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
  input.new_blocks = ints(at.blocks, most_blocks(limits_));
  input.max_query_rows = shape.max_query_rows;
  input.last_tokens = last_tokens_;
  input.table = table_;
  input.history = cache.tokens();
  input.block_map = cache.homes();
  input.tokens = tokens_.rows(0, shape.rows);
  input.positions = positions_.rows(0, shape.rows);
  input.slot_mapping = places_.rows(0, shape.rows);
  input.kv_length = kv_length_.rows(0, shape.sequences);
  input.block_table = block_table_.rows(0, shape.sequences);
  return input;
}

layers::Batch StepStaging::batch(const StepShape& shape) {
  const StepLayout at(shape);
  layers::Batch batch;
  batch.tokens = tokens_.rows(0, shape.rows);
  batch.positions = positions_.rows(0, shape.rows);
  batch.slots = places_.rows(0, shape.rows);
  batch.query_start = ints(at.query_start, shape.sequences + 1);
  batch.kv_length = kv_length_.rows(0, shape.sequences);
  batch.block_table = block_table_.rows(0, shape.sequences);
  if (!shape.all_logits) batch.logit_rows = ints(at.logit_rows, shape.logit_rows);
  batch.max_query_rows = shape.max_query_rows;
  batch.max_kv_length = shape.max_kv_length;
  batch.parts = parts_.at(words_ + parts_at_);
  return batch;
}

layers::SampleStep StepStaging::sample_step(const StepShape& shape, std::int64_t rows,
                                            TensorView history) const {
  const StepLayout at(shape);
  layers::SampleStep step;
  step.slots = ints(at.draw_slots, rows);
  step.positions = ints(at.draw_positions, rows);
  step.targets = ints(at.targets, rows);
  step.history = history;
  // Rows that draw are the first, in the order of the sequences; those behind them have no slot, so that
  // their tables are not read.
  step.block_table = block_table_.rows(0, rows);
  return step;
}

}  // namespace nvllm::runtime
