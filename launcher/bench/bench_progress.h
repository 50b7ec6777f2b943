// BenchProgress: formats the line that shows a benchmark's progress on a terminal. It prints
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "launcher/bench/load_generator.h"

namespace nvllm::launcher {

class BenchProgress {
 public:
  explicit BenchProgress(std::int64_t started_ns) : shown_ns_(started_ns) {}

  // The next line, which replaces the last one on the terminal; empty if it is not due. total: the
  // number of requests; 0: that of the records.
  std::string line(std::span<const RequestRecord> records, std::size_t total, std::int64_t now_ns);
  // The text that removes the line from the terminal.
  std::string clear();

 private:
  std::int64_t shown_ns_;
  bool shown_ = false;
};

}  // namespace nvllm::launcher
