// Shows the progress of loading, and the memory that it took.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launcher/supervise/console.h"
#include "runtime/model/model_loading.h"

namespace nvllm::launcher {

// Formats the progress: a bar on a terminal, otherwise a line per second. Prints nothing itself.
class LoadProgressText {
 public:
  // started_ns: when loading began, on the clock of the updates.
  LoadProgressText(bool terminal, std::int64_t started_ns)
      : terminal_(terminal), started_ns_(started_ns), last_line_ns_(started_ns) {}

  // The text to print now; may be empty.
  std::string update(std::uint64_t bytes, std::uint64_t total, std::int64_t now_ns);
  // The text that removes the bar from the terminal.
  std::string finish();

  // No bar is shown before this time: short loads need none.
  static constexpr Nanoseconds kNoBarBefore = std::chrono::milliseconds(300);

 private:
  bool terminal_;
  bool bar_shown_ = false;
  std::int64_t started_ns_;
  std::int64_t last_line_ns_;
};

// Shows the progress of loading on standard error while this object exists.
class LoadDisplay {
 public:
  explicit LoadDisplay(Console& console);  // which must outlive it
  LoadDisplay(const LoadDisplay&) = delete;
  LoadDisplay& operator=(const LoadDisplay&) = delete;
  ~LoadDisplay();

  void show(const runtime::LoadState& state);

 private:
  void print(const std::string& text);

  Console& console_;
  LoadProgressText text_;
};

// A titled table of the memory that every rank has allocated, by purpose.
std::string format_memory(const std::vector<runtime::RankReport>& ranks);
std::string format_memory(const std::vector<runtime::RankLoad>& loads);

}  // namespace nvllm::launcher
