#include "runtime/step_writer.h"

#include <algorithm>

#include "base/check.h"

namespace nvllm::runtime {
namespace {

std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}

}  // namespace

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

StepWriter::StepWriter(std::int32_t* words, const StepShape& shape, std::int64_t most_blocks)
    : words_(words), shape_(shape), at_(shape), most_blocks_(most_blocks) {}

void StepWriter::add(const StepPart& part, SlotSequence& sequence) {
  const std::int64_t row = rows_, end = part.first + part.rows;
  const auto slot = static_cast<std::int32_t>(part.slot);
  const std::int32_t* const tokens = sequence.tokens.data() + part.first;
  add_sequence(slot, part.first, part.rows, part.known ? tokens_ : -1, &sequence);
  if (part.known) {
    std::copy_n(tokens, part.rows, words_ + at_.tokens + tokens_);
    tokens_ += part.rows;
  }
  if (part.draws) set_logits(part.draw_logits, row + part.rows - 1, slot, end, -1);
  for (std::int64_t i = 0; i < part.scored; ++i) {
    set_logits(part.scored_logits + i, row + i, -1, part.first + i + 1, tokens[i + 1]);
  }
}

void StepWriter::add_blocks(std::uint32_t slot, SlotSequence& sequence) {
  add_sequence(static_cast<std::int32_t>(slot), 0, 0, 0, &sequence);
}

std::size_t StepWriter::finish() {
  while (sequences_ < shape_.sequences) {
    if (shape_.all_logits) set_logits(sequences_, rows_, -1, 0, -1);
    add_sequence(-1, 0, 1, 0, nullptr);
  }
  NVLLM_CHECK_EQ(rows_, shape_.rows);
  words_[at_.query_start + sequences_] = narrow(rows_);
  words_[at_.block_start + sequences_] = narrow(blocks_);
  return static_cast<std::size_t>(at_.blocks + blocks_);
}

void StepWriter::add_sequence(std::int32_t slot, std::int64_t first, std::int64_t rows,
                              std::int64_t token, SlotSequence* news) {
  const std::int64_t s = sequences_++;
  words_[at_.slots + s] = slot;
  words_[at_.query_start + s] = narrow(rows_);
  words_[at_.first_position + s] = narrow(first);
  words_[at_.first_token + s] = narrow(token);
  words_[at_.first_block + s] = news != nullptr ? narrow(news->blocks_told) : 0;
  words_[at_.block_start + s] = narrow(blocks_);
  rows_ += rows;
  if (news == nullptr) return;
  const std::int64_t count = std::min(
      static_cast<std::int64_t>(news->blocks.size()) - news->blocks_told, most_blocks_ - blocks_);
  std::copy_n(news->blocks.begin() + news->blocks_told, count, words_ + at_.blocks + blocks_);
  news->blocks_told += count;
  blocks_ += count;
}

void StepWriter::set_logits(std::int64_t logits, std::int64_t row, std::int32_t slot,
                            std::int64_t position, std::int32_t target) {
  words_[at_.logit_rows + logits] = narrow(row);
  words_[at_.draw_slots + logits] = slot;
  words_[at_.draw_positions + logits] = narrow(position);
  words_[at_.targets + logits] = target;
}

}  // namespace nvllm::runtime
