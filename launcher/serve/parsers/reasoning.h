// ReasoningSplitter: tells a model's reasoning, <think>...</think>, from its answer.
#pragma once

#include <string>

#include "launcher/serve/parsers/tag_matcher.h"

namespace nvllm::launcher {

// There is one block of reasoning at most, at the beginning of the answer. White space before
// <think> is dropped; later tags are text.
class ReasoningSplitter {
 public:
  // inside: the answer begins inside the reasoning; a <think> there says it once more.
  explicit ReasoningSplitter(bool inside) : inside_(inside) {}

  void push(char byte, std::string& reasoning, std::string& content);
  void finish(std::string& reasoning, std::string& content);

 private:
  enum class State { start, reasoning, content };
  void leave_start(State next, std::string& reasoning, std::string& content);

  static constexpr int kOpen = 0, kClose = 1;
  bool inside_;
  State state_ = State::start;
  TagMatcher tags_{"<think>", "</think>"};
  std::string text_;  // what the tags released; at the start, white space that waits
};

}  // namespace nvllm::launcher
