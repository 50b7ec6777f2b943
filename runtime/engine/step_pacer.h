// StepPacer: the chunk size of chunked prefill, chosen so that a step takes about a given time.
// On a CPU a step of thousands of rows takes minutes; until it ends, nothing can be aborted or
// reported.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nvllm::runtime {

// Not thread-safe.
class StepPacer {
 public:
  // step_s: how long a step should take. max_rows: never more than that.
  StepPacer(double step_s, std::int64_t max_rows)
      : step_s_(step_s), max_rows_(std::max<std::int64_t>(max_rows, 1)) {}

  // Rows of the next step; before anything is known so few that hardly a machine takes long.
  std::int64_t rows() const { return std::min(rows_, max_rows_); }

  // A step of so many rows took so long. Short steps say nothing: they are a prompt's last ones, or
  // decodes.
  void note(std::int64_t step_rows, double seconds) {
    if (step_rows * 2 < rows() || seconds <= 0) return;
    const double fitting = static_cast<double>(step_rows) * step_s_ / seconds;
    const auto wanted = static_cast<std::int64_t>(std::min(fitting, 1e9));
    // No more than twice as many at once: a step may have been short by chance.
    rows_ = std::clamp(wanted, kMinRows, 2 * rows_) / kMinRows * kMinRows;
  }

 private:
  // GEMMs of fewer rows read the weights as often, and are not faster.
  static constexpr std::int64_t kMinRows = 8;
  static constexpr std::int64_t kFirstRows = 16;

  double step_s_;
  std::int64_t max_rows_;
  std::int64_t rows_ = kFirstRows;
};

}  // namespace nvllm::runtime
