#include "launcher/chat/prompt_progress.h"

#include "launcher/session/text_table.h"

namespace nvllm::launcher {

std::string PromptProgress::update(std::int64_t read_tokens, std::int64_t now_ns) {
  constexpr Nanoseconds kEvery = std::chrono::milliseconds(100);
  if (now_ns - started_ns_ < kNothingBefore.count()) return "";
  if (shown_ns_ != 0 && now_ns - shown_ns_ < kEvery.count()) return "";
  shown_ns_ = now_ns;
  const double done = prompt_tokens_ == 0
                          ? 1
                          : static_cast<double>(read_tokens) / static_cast<double>(prompt_tokens_);
  std::string text = str("reading the prompt: ", read_tokens, " of ", prompt_tokens_, " tokens");
  if (read_tokens > 0 && read_tokens < prompt_tokens_) {
    const double seconds = static_cast<double>(now_ns - started_ns_) * 1e-9;
    text += str(", ", format_duration(seconds / done * (1 - done)), " left");
  }
  if (text == shown_) return "";
  shown_ = text;
  return kClearLine + text;
}

std::string PromptProgress::finish() {
  if (shown_.empty()) return "";
  shown_.clear();
  return kClearLine;
}

}  // namespace nvllm::launcher
