// Parsers of tool calls that are a JSON object after a tag: hermes and llama3_json.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/serve/parsers/tool_call_parser.h"

namespace nvllm::launcher {

namespace {

class HermesParser final : public ToolCallParser {
 public:
  using ToolCallParser::ToolCallParser;

  void push(char byte, OutputDelta& out) override {
    if (state_ == State::before_object && is_space(byte)) {
      held_ += byte;
    } else if (state_ == State::text) {
      push_text(byte, out);
    } else {
      if (state_ == State::before_object) object_ = CallObject(true);
      state_ = State::object;
      push_call(byte, out);
    }
  }

 protected:
  void end(OutputDelta& out) override {
    tags_.finish(held_);
    if (!object_.certain()) held_ += object_.held();
    add_content(held_, out);
  }

 private:
  // before_object: after the tag that opens a call; held_ starts with it.
  enum class State { text, before_object, object };
  static constexpr int kOpen = 0, kClose = 1;

  void push_text(char byte, OutputDelta& out) {
    std::string text;
    const int tag = tags_.push(byte, text);
    add_content(text, out);
    if (tag == kOpen) {
      state_ = State::before_object;
      held_ = tags_.tag(tag);
      open_ = false;
    } else if (tag == kClose && !std::exchange(open_, false)) {
      add_content(tags_.tag(tag), out);  // it closes nothing
    }
  }

  void push_call(char byte, OutputDelta& out) {
    const CallObject::Step step = push_object(object_, byte, out);
    if (object_.certain()) {
      held_.clear();
      open_ = true;
    }
    if (step == CallObject::Step::more) return;
    state_ = State::text;
    if (step == CallObject::Step::failed) {
      add_content(std::exchange(held_, {}) + object_.held(), out);
      push_text(byte, out);
    }
    object_ = CallObject(true);
  }

  State state_ = State::text;
  bool open_ = false;  // a call was found, and has not been closed yet
  TagMatcher tags_{"<tool_call>", "</tool_call>"};
  CallObject object_{true};
  std::string held_;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_hermes_parser(std::uint64_t seed) {
  return std::make_unique<HermesParser>(CallIds(seed, "call_", 24));
}

namespace {

class Llama3JsonParser final : public ToolCallParser {
 public:
  using ToolCallParser::ToolCallParser;

  void push(char byte, OutputDelta& out) override {
    if (state_ == State::object) return push_call(byte, out);
    std::string text;
    const bool tag = tags_.push(byte, text) != TagMatcher::kNone;
    if (state_ == State::before_object) {
      push_before(text, out);
    } else {
      add_content(text, out);
    }
    if (!tag) return;
    held_ += tags_.tag(0);
    state_ = State::before_object;
  }

 protected:
  void end(OutputDelta& out) override {
    tags_.finish(held_);
    if (!object_.certain()) held_ += object_.held();
    if (!called() || !is_separator(held_)) add_content(held_, out);
  }

 private:
  // before_object: at the beginning, after the tag, or after a call. held_ has what came there.
  enum class State { before_object, object, text };

  static bool is_separator(std::string_view text) {
    return std::ranges::all_of(text, [](char byte) { return is_space(byte) || byte == ';'; });
  }

  // text: what the tag's matcher released.
  void push_before(std::string_view text, OutputDelta& out) {
    if (called() ? is_separator(text) : is_space(text)) {
      held_ += text;
    } else if (text == "{") {
      state_ = State::object;
      object_ = CallObject(false);
      push_call('{', out);
    } else {
      add_content(std::exchange(held_, {}).append(text), out);
      state_ = State::text;
    }
  }

  void push_call(char byte, OutputDelta& out) {
    const CallObject::Step step = push_object(object_, byte, out);
    if (object_.certain()) held_.clear();
    if (step == CallObject::Step::more) return;
    if (step == CallObject::Step::done) {
      state_ = State::before_object;
    } else {
      add_content(std::exchange(held_, {}) + object_.held(), out);
      state_ = State::text;
      push(byte, out);
    }
    object_ = CallObject(false);
  }

  State state_ = State::before_object;
  TagMatcher tags_{"<|python_tag|>"};
  CallObject object_{false};
  std::string held_;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_llama3_json_parser(std::uint64_t seed) {
  return std::make_unique<Llama3JsonParser>(CallIds(seed, "call_", 24));
}

}  // namespace nvllm::launcher
