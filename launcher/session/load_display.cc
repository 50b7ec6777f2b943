#include "launcher/session/load_display.h"

#include <unistd.h>

#include <algorithm>

#include "base/logging.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {

std::string LoadProgressText::update(std::uint64_t bytes, std::uint64_t total,
                                     std::int64_t now_ns) {
  const double done =
      total == 0 ? 1 : std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total));
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  const double seconds = static_cast<double>(now_ns - started_ns_) * 1e-9;
  const std::string text =
      str(fixed(gigabytes, 2), " of ", fixed(static_cast<double>(total) * 1e-9, 2), " GB, ",
          fixed(seconds > 0 ? gigabytes / seconds : 0.0, 2), " GB/s");
  constexpr Nanoseconds kLineEvery = std::chrono::seconds(1);
  if (!terminal_) {
    if (now_ns - last_line_ns_ < kLineEvery.count()) return "";
    last_line_ns_ += (now_ns - last_line_ns_) / kLineEvery.count() * kLineEvery.count();
    return format_log_line("launcher", LogLevel::info, "loading: " + text);
  }
  if (now_ns - started_ns_ < kNoBarBefore.count()) return "";
  bar_shown_ = true;
  return str(kClearLine, "loading ", progress_bar(done), text);
}

std::string LoadProgressText::finish() {
  if (!bar_shown_) return "";
  bar_shown_ = false;
  return kClearLine;
}

LoadDisplay::LoadDisplay(Console& console)
    : console_(console), text_(::isatty(STDERR_FILENO) == 1, now_ns()) {}

LoadDisplay::~LoadDisplay() {
  print(text_.finish());
}

void LoadDisplay::print(const std::string& text) {
  if (!text.empty()) console_.draw(text);
}

void LoadDisplay::show(const runtime::LoadState& state) {
  if (!log_enabled(LogLevel::info)) return;
  print(text_.update(state.bytes, state.total, now_ns()));
}

std::string format_memory(const std::vector<runtime::RankReport>& ranks) {
  TextTable table;
  table.add_row({"rank", "memory", "for", "bytes", "buffers"});
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    // On the CPU all memory is host memory, whatever its kind with a GPU.
    const bool on_cpu = ranks[rank].device.starts_with("CPU");
    for (const runtime::MemoryLine& line : ranks[rank].memory) {
      table.add_row({str(rank), on_cpu ? "host" : line.kind, line.purpose, str(line.bytes),
                     str(line.buffers)});
    }
  }
  return "memory of the ranks\n" + table.text();
}

std::string format_memory(const std::vector<runtime::RankLoad>& loads) {
  std::vector<runtime::RankReport> ranks;
  for (const runtime::RankLoad& load : loads) ranks.push_back(load.report);
  return format_memory(ranks);
}

}  // namespace nvllm::launcher
