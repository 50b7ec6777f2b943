#include "launcher/serve/parsers/reasoning.h"

#include <utility>

namespace nvllm::launcher {

void ReasoningSplitter::leave_start(State next, std::string& reasoning, std::string& content) {
  (inside_ ? reasoning : content) += std::exchange(text_, {});
  state_ = next;
}

void ReasoningSplitter::push(char byte, std::string& reasoning, std::string& content) {
  if (state_ == State::content) {
    content += byte;
    return;
  }
  const std::size_t waiting = text_.size();
  const int tag = tags_.push(byte, text_);
  if (state_ == State::start) {
    if (tag == kOpen) {
      text_.clear();
      state_ = State::reasoning;
    } else if (tag == kClose) {
      if (!inside_) text_ += tags_.tag(tag);
      leave_start(State::content, reasoning, content);
    } else if (!is_space(std::string_view(text_).substr(waiting))) {
      leave_start(inside_ ? State::reasoning : State::content, reasoning, content);
      // What is content from here on may still hold the beginning of a tag.
      if (!inside_) tags_.finish(content);
    }
    return;
  }
  if (tag == kOpen) text_ += tags_.tag(tag);
  reasoning += std::exchange(text_, {});
  if (tag == kClose) state_ = State::content;
}

void ReasoningSplitter::finish(std::string& reasoning, std::string& content) {
  tags_.finish(text_);
  const bool to_reasoning = state_ == State::reasoning || (state_ == State::start && inside_);
  (to_reasoning ? reasoning : content) += std::exchange(text_, {});
}

}  // namespace nvllm::launcher
