// RowParts: a step's rows cut into parts of at most so many, for a pass that takes all rows through one
// layer before it goes on to the next (model/decoder.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layers/batch.h"
#include "runtime/slot_table.h"

namespace nvllm::runtime {

// Used by one thread; kept for its memory.
class RowParts {
 public:
  explicit RowParts(std::int64_t most_rows) : most_rows_(most_rows) {}

  // Words that the parts of a step take at most: each sequence is in one part, and in one more for each cut.
  static std::int64_t most_words(std::int64_t sequences, std::int64_t rows, std::int64_t most_rows);

  // The sequences in the batch's order. No parts if one is enough.
  void cut(std::span<const StepPart* const> sequences);

  // For each part its query_start, then its kv_length.
  std::span<const std::int32_t> words() const { return words_; }
  // The parts, with their words at this address.
  std::span<const layers::BatchPart> at(std::int32_t* words);

 private:
  void end_part(std::int64_t next_row, std::int64_t next_sequence);

  const std::int64_t most_rows_;
  std::vector<std::int32_t> words_, starts_, lengths_;
  std::vector<layers::BatchPart> parts_;
  layers::BatchPart part_;  // that is being filled
};

}  // namespace nvllm::runtime
