#include "launcher/serve/api/answer_blocks.h"

#include <utility>

namespace nvllm::launcher {

using Kind = AnswerBlock::Kind;

void AnswerBlocks::add(const OutputDelta& delta, Listener* listener) {
  add_text(Kind::reasoning, delta.reasoning, listener);
  add_text(Kind::text, delta.content, listener);
  for (const ToolCallDelta& call : delta.tool_calls) add_tool_call(call, listener);
}

void AnswerBlocks::add_text(Kind kind, std::string_view text, Listener* listener) {
  if (text.empty()) return;
  if (!open_ || blocks_.back().kind != kind) {
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
      space_ += text;
      return;
    }
    open({.kind = kind}, listener);
    if (!space_.empty()) grow(std::exchange(space_, {}), listener);
  }
  grow(text, listener);
}

void AnswerBlocks::add_tool_call(const ToolCallDelta& call, Listener* listener) {
  if (!call.id.empty()) {
    space_.clear();
    open({.kind = Kind::tool_call, .id = call.id, .name = call.name}, listener);
  }
  if (!call.arguments.empty()) grow(call.arguments, listener);
}

void AnswerBlocks::open(AnswerBlock block, Listener* listener) {
  close(listener);
  blocks_.push_back(std::move(block));
  open_ = true;
  if (listener != nullptr) listener->opened(blocks_.size() - 1, blocks_.back());
}

void AnswerBlocks::grow(std::string_view text, Listener* listener) {
  blocks_.back().text += text;
  if (listener != nullptr) listener->grew(blocks_.size() - 1, blocks_.back(), text);
}

void AnswerBlocks::close(Listener* listener) {
  if (!std::exchange(open_, false)) return;
  if (listener != nullptr) listener->closed(blocks_.size() - 1, blocks_.back());
}

}  // namespace nvllm::launcher
