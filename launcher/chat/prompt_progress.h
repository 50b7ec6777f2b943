// PromptProgress: what is shown of a prompt that takes longer than a second to read.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace nvllm::launcher {

// Not thread-safe.
class PromptProgress {
 public:
  static constexpr Nanoseconds kNothingBefore = std::chrono::seconds(1);

  PromptProgress(std::int64_t prompt_tokens, std::int64_t started_ns)
      : prompt_tokens_(prompt_tokens), started_ns_(started_ns) {}

  // The text to write now, without a newline: it stands in place of the last one. May be empty.
  std::string update(std::int64_t read_tokens, std::int64_t now_ns);
  // The text that removes it.
  std::string finish();

 private:
  std::int64_t prompt_tokens_, started_ns_;
  std::int64_t shown_ns_ = 0;  // 0: nothing was shown
  std::string shown_;
};

}  // namespace nvllm::launcher
