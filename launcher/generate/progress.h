// GenerateProgress: formats the progress of `generate`: a bar during the run, a summary line at the
// end. It prints nothing itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/generate/answer_queue.h"

namespace nvllm::launcher {

class GenerateProgress {
 public:
  explicit GenerateProgress(std::int64_t started_ns)
      : started_ns_(started_ns), shown_ns_(started_ns) {}

  // The next bar, which replaces the last one on the terminal; empty if it is not due. total_bytes:
  // size of the input; 0: unknown.
  std::string bar(const AnswerQueue::Totals& totals, std::uint64_t total_bytes,
                  std::int64_t now_ns);
  // The text that removes the bar from the terminal.
  std::string clear();

  // "12 requests, 12 answers in 1.20 s: 300 prompt tokens (16 cached), 192 generated, 160.0 tok/s"
  std::string summary(const AnswerQueue::Totals& totals, std::uint64_t kept_lines,
                      std::int64_t now_ns) const;

 private:
  std::int64_t started_ns_, shown_ns_;
  bool shown_ = false;
};

}  // namespace nvllm::launcher
