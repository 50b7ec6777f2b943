// How far `generate` is: a bar while it works, a line of figures at the end. Pure: it makes the text,
// others print it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/generate/answer_book.h"

namespace nvllm::launcher {

class GenerateProgress {
 public:
  explicit GenerateProgress(std::int64_t started_ns)
      : started_ns_(started_ns), shown_ns_(started_ns) {}

  // What takes the last bar's place on the terminal; nothing if it is not due. total_bytes: of the input;
  // 0: nobody knows.
  std::string bar(const AnswerBook::Totals& totals, std::uint64_t total_bytes, std::int64_t now_ns);
  // What takes the bar off the terminal.
  std::string clear();

  // "12 requests, 12 answers in 1.20 s: 300 prompt tokens (16 cached), 192 generated, 160.0 tok/s"
  std::string summary(const AnswerBook::Totals& totals, std::uint64_t kept_lines,
                      std::int64_t now_ns) const;

 private:
  std::int64_t started_ns_, shown_ns_;
  bool shown_ = false;
};

}  // namespace nvllm::launcher
