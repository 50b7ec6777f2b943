#include "launcher/hub/download_display.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kTerminalEvery = std::chrono::milliseconds(200);
constexpr Nanoseconds kLineEvery = std::chrono::seconds(10);

// The remaining time: "40 s", "3 min".
std::string rest_of_time(double seconds) {
  if (seconds < 90) return fixed(std::max(1.0, seconds), 0) + " s";
  if (seconds < 5400) return fixed(seconds / 60, 0) + " min";
  return fixed(seconds / 3600, 1) + " h";
}

}  // namespace

std::string download_line(const std::string& name, std::uint64_t at_start, std::uint64_t done,
                          std::uint64_t total, double seconds) {
  const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  const double rate = seconds > 0 ? static_cast<double>(done - at_start) / seconds : 0;
  std::string line = str(name, ": ", progress_bar(std::min(1.0, share)), format_bytes(done), " of ",
                         format_bytes(total), ", ", three_digits(rate * 1e-6), " MB/s");
  if (rate > 0 && done < total) {
    line += ", " + rest_of_time(static_cast<double>(total - done) / rate) + " left";
  }
  return line;
}

DownloadDisplay::DownloadDisplay(std::string name, std::uint64_t done, std::uint64_t total)
    : name_(std::move(name)),
      at_start_(done),
      total_(total),
      started_ns_(now_ns()),
      terminal_(::isatty(STDERR_FILENO) == 1),
      done_(done) {
  thread_ = start_thread("of a progress display", [this] { run(); });
}

DownloadDisplay::~DownloadDisplay() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (terminal_) std::fputs(kClearLine, stderr);
}

void DownloadDisplay::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, terminal_ ? kTerminalEvery : kLineEvery, [&] { return ended_; })) {
    show();
  }
}

void DownloadDisplay::show() {
  const std::string line =
      download_line(name_, at_start_, done_, total_, seconds_since(started_ns_));
  std::fputs((terminal_ ? kClearLine + line : line + '\n').c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace nvllm::launcher
