#include "launcher/generate/progress.h"

#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

constexpr Nanoseconds kBarEvery = std::chrono::milliseconds(200);

std::string rate(std::uint64_t tokens, std::int64_t from_ns, std::int64_t to_ns) {
  const double seconds = static_cast<double>(to_ns - from_ns) * 1e-9;
  return fixed(seconds > 0 ? static_cast<double>(tokens) / seconds : 0, 1) + " tok/s";
}

}  // namespace

std::string GenerateProgress::bar(const AnswerQueue::Totals& totals, std::uint64_t total_bytes,
                                  std::int64_t now_ns) {
  if (now_ns - shown_ns_ < kBarEvery.count()) return "";
  shown_ns_ = now_ns;
  shown_ = true;
  std::string text = str(kClearLine, "generating ");
  if (total_bytes > 0) {
    const double done =
        std::min(1.0, static_cast<double>(totals.written_bytes) / static_cast<double>(total_bytes));
    text += progress_bar(done);
  }
  return text + str(counted(totals.requests + totals.failed, "request"), " done, ",
                    rate(totals.generated_tokens, started_ns_, now_ns));
}

std::string GenerateProgress::clear() {
  if (!shown_) return "";
  shown_ = false;
  return kClearLine;
}

std::string GenerateProgress::summary(const AnswerQueue::Totals& totals, std::uint64_t kept_lines,
                                      std::int64_t now_ns) const {
  std::string text;
  if (kept_lines > 0) {
    text =
        str(counted(kept_lines, "line"), kept_lines == 1 ? " was" : " were", " answered already; ");
  }
  text += str(counted(totals.requests, "request"), ", ", counted(totals.answers, "answer"), " in ",
              fixed(static_cast<double>(now_ns - started_ns_) * 1e-9, 2),
              " s: ", counted(totals.prompt_tokens, "prompt token"), " (", totals.cached_tokens,
              " cached), ", totals.generated_tokens, " generated, ",
              rate(totals.generated_tokens, started_ns_, now_ns));
  if (totals.failed > 0) text += str("; ", counted(totals.failed, "line"), " failed");
  return text;
}

}  // namespace nvllm::launcher
