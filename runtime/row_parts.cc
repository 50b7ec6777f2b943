#include "runtime/row_parts.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

namespace nvllm::runtime {

std::int64_t RowParts::most_words(std::int64_t sequences, std::int64_t rows,
                                  std::int64_t most_rows) {
  const std::int64_t parts = divide_up(rows, most_rows);
  return parts < 2 ? 0 : 2 * (sequences + parts) + parts;
}

void RowParts::cut(std::span<const StepPart* const> sequences) {
  words_.clear();
  parts_.clear();
  part_ = {};
  std::int64_t rows = 0;
  for (const StepPart* const sequence : sequences) rows += sequence->rows;
  if (rows <= most_rows_) return;
  std::int64_t row = 0;  // of the batch
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const StepPart& sequence = *sequences[s];
    for (std::int64_t done = 0; done < sequence.rows;) {
      if (part_.rows == most_rows_) end_part(row, static_cast<std::int64_t>(s));
      const std::int64_t count = std::min(sequence.rows - done, most_rows_ - part_.rows);
      done += count;
      starts_.push_back(static_cast<std::int32_t>(part_.rows));
      lengths_.push_back(static_cast<std::int32_t>(sequence.first + done));
      part_.rows += count;
      ++part_.sequences;
      part_.max_query_rows = std::max(part_.max_query_rows, count);
      part_.max_kv_length = std::max(part_.max_kv_length, sequence.first + done);
      row += count;
    }
  }
  end_part(row, 0);
}

void RowParts::end_part(std::int64_t next_row, std::int64_t next_sequence) {
  starts_.push_back(static_cast<std::int32_t>(part_.rows));
  words_.insert(words_.end(), starts_.begin(), starts_.end());
  words_.insert(words_.end(), lengths_.begin(), lengths_.end());
  starts_.clear();
  lengths_.clear();
  parts_.push_back(part_);
  part_ = {.first_row = next_row, .first_sequence = next_sequence};
}

std::span<const layers::BatchPart> RowParts::at(std::int32_t* words) {
  for (layers::BatchPart& part : parts_) {
    part.query_start = TensorView(words, DType::i32, {part.sequences + 1});
    part.kv_length = TensorView(words + part.sequences + 1, DType::i32, {part.sequences});
    words += 2 * part.sequences + 1;
  }
  return parts_;
}

}  // namespace nvllm::runtime
