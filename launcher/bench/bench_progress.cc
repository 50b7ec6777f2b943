#include "launcher/bench/bench_progress.h"

#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kLineEvery = std::chrono::milliseconds(200);

}  // namespace

std::string BenchProgress::line(std::span<const RequestRecord> records, std::size_t total,
                                std::int64_t now_ns) {
  if (now_ns - shown_ns_ < kLineEvery.count() || records.empty()) return "";
  shown_ns_ = now_ns;
  shown_ = true;
  std::int64_t finished = 0, tokens = 0, begin = records.front().submitted_ns;
  for (const RequestRecord& record : records) {
    finished += record.finished ? 1 : 0;
    tokens += record.tokens;
  }
  const double seconds = std::max(static_cast<double>(now_ns - begin) * 1e-9, 1e-9);
  return str(kClearLine, "measuring ", finished, " of ",
             counted(std::max(total, records.size()), "request"), " done, ", tokens, " tokens, ",
             three_digits(static_cast<double>(tokens) / seconds), " tok/s");
}

std::string BenchProgress::clear() {
  if (!shown_) return "";
  shown_ = false;
  return kClearLine;
}

}  // namespace nvllm::launcher
