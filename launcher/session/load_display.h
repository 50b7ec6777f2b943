// How far loading is: a bar on a terminal, else a line per second.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace nvllm::launcher {

// Pure: it makes the text, others print it.
class LoadProgressText {
 public:
  // started_ns: when loading began, on the clock of the updates.
  LoadProgressText(bool terminal, std::int64_t started_ns)
      : terminal_(terminal), started_ns_(started_ns), last_line_ns_(started_ns) {}

  // What is to be printed now; may be nothing.
  std::string update(std::uint64_t bytes, std::uint64_t total, std::int64_t now_ns);
  // What takes the bar off the terminal again.
  std::string finish();

  // A load that is over sooner needs no bar.
  static constexpr Nanoseconds kNoBarBefore = std::chrono::milliseconds(300);

 private:
  bool terminal_;
  bool bar_shown_ = false;
  std::int64_t started_ns_;
  std::int64_t last_line_ns_;
};

}  // namespace nvllm::launcher
