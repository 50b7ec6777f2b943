#include "runtime/runner/slot_table.h"

#include <algorithm>

#include "base/check.h"

namespace nvllm::runtime {

SlotTable::SlotTable(std::int64_t slots, std::int64_t max_model_len, std::int64_t block_size)
    : max_model_len_(max_model_len),
      block_size_(block_size),
      slots_(static_cast<std::size_t>(slots)) {
  parts_.reserve(slots_.size());
  repeated_.reserve(slots_.size());
}

SlotSequence& SlotTable::operator[](std::uint32_t slot) {
  NVLLM_CHECK_LT(slot, slots_.size());
  return slots_[slot];
}

void SlotTable::apply(const StepMessage& message) {
  for (const std::uint32_t slot : message.ended) {
    NVLLM_CHECK((*this)[slot].present, "slot ", slot, " is free and cannot end");
    slots_[slot].present = false;
  }
  repeated_.clear();
  if (message.same_rows) {
    for (const ScheduledRows& part : parts_) {
      if (slots_[part.slot].present) repeated_.push_back(part.slot);
    }
  }
  for (const SlotStart& one : message.started) start(one);
  for (const BlockAppend& append : message.blocks) {
    NVLLM_CHECK((*this)[append.slot].present, "a block for slot ", append.slot, ", which is free");
    slots_[append.slot].blocks.push_back(append.block);
  }
  for (const SlotToken& sampled : message.tokens) {
    SlotSequence& sequence = (*this)[sampled.slot];
    NVLLM_CHECK(sequence.present && std::ssize(sequence.tokens) == sequence.computed,
                "a token for slot ", sampled.slot, ", which has others to come");
    sequence.tokens.push_back(sampled.token);
  }
  for (const BlockAppend& append : message.windows.blocks) {
    NVLLM_CHECK((*this)[append.slot].present, "a block for slot ", append.slot, ", which is free");
    slots_[append.slot].window_blocks.push_back(append.block);
  }
  parts_.clear();
  for (const std::uint32_t slot : repeated_) add_part(slot, 1);
  if (!message.same_rows) {
    for (const StepRows& rows : message.rows) add_part(rows.slot, rows.rows);
  }
  place_logits();
}

void SlotTable::start(const SlotStart& start) {
  SlotSequence& sequence = (*this)[start.slot];
  NVLLM_CHECK(!sequence.present, "slot ", start.slot, " is taken");
  NVLLM_CHECK_LT(start.computed, static_cast<std::int64_t>(start.tokens.size()));
  sequence.present = true;
  sequence.tokens.assign(start.tokens.begin(), start.tokens.end());
  sequence.computed = start.computed;
  sequence.blocks.clear();
  sequence.resident = start.resident;
  sequence.blocks_sent = 0;
  sequence.window_blocks.clear();
  sequence.window_blocks_sent = 0;
  sequence.prompt_length = start.rules.prompt_length;
  sequence.prompt_logprobs = start.prompt_logprobs;
  sequence.logprobs = start.rules.logprobs;
  sequence.penalties = start.rules.changes_logits();
  sequence.top_k_top_p = start.rules.truncates();
}

void SlotTable::add_part(std::uint32_t slot, std::int64_t rows) {
  SlotSequence& sequence = (*this)[slot];
  NVLLM_CHECK(sequence.present, "rows of slot ", slot, ", which is free");
  const auto tokens = static_cast<std::int64_t>(sequence.tokens.size());
  ScheduledRows part{.slot = slot, .first = sequence.computed, .rows = rows};
  const std::int64_t end = part.first + rows;
  part.known = part.first < tokens;
  NVLLM_CHECK(rows >= 1 && (part.known ? end <= tokens : rows == 1), "slot ", slot, ": ", rows,
              " rows from position ", part.first, " on, but ", tokens, " tokens are known");
  NVLLM_CHECK_LE(end, max_model_len_);
  NVLLM_CHECK_LE(end, static_cast<std::int64_t>(sequence.blocks.size()) * block_size_);
  part.later_rows = std::max<std::int64_t>(tokens - end, 0);
  part.samples = part.later_rows == 0;
  if (sequence.prompt_logprobs >= 0) {
    part.prompt_logprobs =
        std::clamp<std::int64_t>(sequence.prompt_length - 1 - part.first, 0, rows);
  }
  sequence.computed = end;
  parts_.push_back(part);
}

void SlotTable::place_logits() {
  std::int64_t row = 0;
  for (ScheduledRows& part : parts_) {
    if (part.samples) part.sample_logits = row++;
  }
  for (ScheduledRows& part : parts_) {
    part.prompt_logits = row;
    row += part.prompt_logprobs;
  }
}

}  // namespace nvllm::runtime
