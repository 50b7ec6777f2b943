// StepPacer: the chunk size of chunked prefill, chosen so that a step takes about a given time. On
// a CPU a step with thousands of rows takes minutes; until it ends, nothing can be aborted or
// reported.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nvllm::runtime {

// Not thread-safe.
class StepPacer {
 public:
  // step_s: target duration of a step. max_rows: upper limit of rows().
  StepPacer(double step_s, std::int64_t max_rows)
      : step_s_(step_s), max_rows_(std::max<std::int64_t>(max_rows, 1)) {}

  // Rows of the next step. The first steps are small enough to be fast on almost any machine.
  std::int64_t rows() const { return std::min(rows_, max_rows_); }

  // Records that a step of step_rows rows took `seconds`. Steps with few rows are ignored: they are
  // a prompt's last chunk, or decodes.
  void note(std::int64_t step_rows, double seconds) {
    if (step_rows * 2 < rows() || seconds <= 0) return;
    const double fitting = static_cast<double>(step_rows) * step_s_ / seconds;
    const auto wanted = static_cast<std::int64_t>(std::min(fitting, 1e9));
    // At most doubles at a time: a step may have been short by chance.
    rows_ = std::clamp(wanted, kMinRows, 2 * rows_) / kMinRows * kMinRows;
  }

 private:
  // Smaller GEMMs read the weights just as often, and are not faster.
  static constexpr std::int64_t kMinRows = 8;
  static constexpr std::int64_t kFirstRows = 16;

  double step_s_;
  std::int64_t max_rows_;
  std::int64_t rows_ = kFirstRows;
};

}  // namespace nvllm::runtime
