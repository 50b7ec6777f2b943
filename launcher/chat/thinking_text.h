// ThinkingText: dims what stands between <think> and </think>, in a text that comes in pieces.
#pragma once

#include <string>
#include <string_view>

namespace nvllm::launcher {

class ThinkingText {
 public:
  // dimmed: false passes pieces unchanged. thinking: whether the text begins inside <think>.
  ThinkingText(bool dimmed, bool thinking);

  std::string push(std::string_view piece);
  std::string finish();

 private:
  bool dimmed_, thinking_;
  std::string held_;  // may be the beginning of a tag
};

}  // namespace nvllm::launcher
