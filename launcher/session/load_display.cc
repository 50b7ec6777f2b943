#include "launcher/session/load_display.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/logging.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {

namespace {

constexpr Nanoseconds kLineEvery = std::chrono::seconds(1);
constexpr std::size_t kBarWidth = 30;

constexpr const char* kToLineStart = "\r\033[K";  // and erases the line

// "3.12 of 16.4 GB, 5.40 GB/s"
std::string amounts(std::uint64_t bytes, std::uint64_t total, double seconds) {
  std::array<char, 96> text;
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  std::snprintf(text.data(), text.size(), "%.2f of %.2f GB, %.2f GB/s", gigabytes,
                static_cast<double>(total) * 1e-9, seconds > 0 ? gigabytes / seconds : 0.0);
  return text.data();
}

}  // namespace

std::string LoadProgressText::update(std::uint64_t bytes, std::uint64_t total,
                                     std::int64_t now_ns) {
  const double done =
      total == 0 ? 1 : std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total));
  const std::string text = amounts(bytes, total, static_cast<double>(now_ns - started_ns_) * 1e-9);
  if (!terminal_) {
    if (now_ns - last_line_ns_ < kLineEvery.count()) return "";
    last_line_ns_ += (now_ns - last_line_ns_) / kLineEvery.count() * kLineEvery.count();
    return format_log_line("launcher", LogLevel::info, "loading: " + text);
  }
  if (now_ns - started_ns_ < kNoBarBefore.count()) return "";
  bar_shown_ = true;
  const auto full = static_cast<std::size_t>(done * kBarWidth);
  return str(kToLineStart, "loading [", std::string(full, '#'), std::string(kBarWidth - full, '.'),
             "] ", static_cast<int>(done * 100), "%, ", text);
}

std::string LoadProgressText::finish() {
  if (!bar_shown_) return "";
  bar_shown_ = false;
  return kToLineStart;
}

LoadDisplay::LoadDisplay(Console& console)
    : console_(console), text_(::isatty(STDERR_FILENO) == 1, now_ns()) {}

LoadDisplay::~LoadDisplay() {
  print(text_.finish());
}

void LoadDisplay::print(const std::string& text) {
  if (!text.empty()) console_.print(text);
}

void LoadDisplay::show(const runtime::LoadState& state) {
  if (!log_enabled(LogLevel::info)) return;
  print(text_.update(state.bytes, state.total, now_ns()));
}

std::string format_memory(const std::vector<runtime::RankLoad>& loads) {
  TextTable table;
  table.add_row({"rank", "memory", "for", "bytes", "buffers"});
  for (std::size_t rank = 0; rank < loads.size(); ++rank) {
    for (const runtime::MemoryLine& line : loads[rank].report.memory) {
      table.add_row({str(rank), line.kind, line.purpose, str(line.bytes), str(line.buffers)});
    }
  }
  return table.text();
}

}  // namespace nvllm::launcher
