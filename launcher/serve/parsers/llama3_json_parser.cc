#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/serve/parsers/tag_matcher.h"
#include "launcher/serve/parsers/tool_call_parser.h"

namespace nvllm::launcher {

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
