// ThinkingText: shows what stands between <think> and </think> dimmed, in a text that comes in pieces.
#pragma once

#include <string>
#include <string_view>

namespace nvllm::launcher {

class ThinkingText {
 public:
  // dimmed: whether to; otherwise pieces pass as they are. thinking: whether the text begins inside.
  ThinkingText(bool dimmed, bool thinking);

  std::string push(std::string_view piece);
  std::string finish();

 private:
  bool dimmed_, thinking_;
  std::string held_;  // what may become a tag
};

}  // namespace nvllm::launcher
