#include <string>
#include <string_view>
#include <utility>

#include "launcher/serve/parsers/stream_matcher.h"
#include "launcher/serve/parsers/tool_call_parser.h"

namespace nvllm::launcher {

namespace {

constexpr std::string_view kArgs = "[ARGS]", kCallId = "[CALL_ID]";
constexpr int kIdLength = 9;

bool is_alphanumeric(char byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= 'a' && byte <= 'z');
}

bool is_name(char byte) {
  return is_alphanumeric(byte) || byte == '_' || byte == '-' || byte == '.';
}

class MistralParser final : public ToolCallParser {
 public:
  using ToolCallParser::ToolCallParser;

  void push(char byte, OutputDelta& out) override {
    switch (state_) {
      case State::text: return push_text(byte, out);
      case State::object: return push_call(byte, out);
      case State::arguments: return push_arguments(byte, out);
      default: break;
    }
    if (!step(byte, out)) {
      fail(out);
      push_text(byte, out);
    }
  }

 protected:
  void end(OutputDelta& out) override {
    tags_.finish(held_);
    if (!object_.certain()) held_ += object_.held();
    const bool in_open_list = (state_ == State::before_object || state_ == State::after_object) &&
                              !held_.starts_with(tags_.tag(0));
    if (!in_open_list) add_content(held_, out);
  }

 private:
  // Until a call's arguments start, held_ has all text from the tag on.
  enum class State {
    text,
    after_tag,
    before_object,  // in a list
    object,
    after_object,  // in a list
    name,
    marker,   // [ARGS] or [CALL_ID]
    call_id,  // after [CALL_ID]
    before_arguments,
    arguments,
  };

  void push_text(char byte, OutputDelta& out) {
    std::string text;
    const int tag = tags_.push(byte, text);
    add_content(text, out);
    if (tag == TagMatcher::kNone) return;
    held_ = tags_.tag(tag);
    in_list_ = false;
    name_.clear();
    id_.clear();
    state_ = State::after_tag;
  }

  // Not a call after all. The start of a marker may be the start of the tag.
  void fail(OutputDelta& out) {
    const std::string marker = state_ == State::marker ? marker_ : "";
    held_.resize(held_.size() - marker.size());
    add_content(std::exchange(held_, {}), out);
    state_ = State::text;
    for (const char byte : marker) push_text(byte, out);
  }

  // Between a tag and an object or arguments, and between objects: whether the byte is valid here.
  bool step(char byte, OutputDelta& out) {
    if (byte == '{' && begin_braces(out)) {
      push(byte, out);
      return true;
    }
    if (!step_held(byte)) return false;
    held_ += byte;
    if (state_ == State::text) held_.clear();  // the end of a list
    return true;
  }

  // Whether an opening brace is valid here: it starts a call's object, or its arguments.
  bool begin_braces(OutputDelta& out) {
    if (state_ == State::after_tag || state_ == State::before_object) {
      state_ = State::object;
      object_ = CallObject(true);
      return true;
    }
    const bool id_ended = state_ == State::call_id && id_.size() == kIdLength;
    if (state_ != State::name && state_ != State::before_arguments && !id_ended) return false;
    held_.clear();
    begin_call(name_, out, id_);
    arguments_ = JsonValueEnd();
    state_ = State::arguments;
    return true;
  }

  bool step_held(char byte) {
    switch (state_) {
      case State::after_tag:
        if (is_space(byte)) return true;
        if (byte == '[') in_list_ = true;
        state_ = in_list_ ? State::before_object : State::name;
        return in_list_ || step_name(byte);
      case State::after_object:
        if (byte == ',') state_ = State::before_object;
        if (byte == ']') state_ = State::text;
        return byte == ',' || byte == ']' || is_space(byte);
      case State::name: return step_name(byte);
      case State::marker: return step_marker(byte);
      case State::call_id:
        if (byte == '[') return id_.size() == kIdLength && step_name(byte);
        id_ += byte;
        return is_alphanumeric(byte) && id_.size() <= kIdLength;
      default:  // before_object, before_arguments
        return is_space(byte);
    }
  }

  // A byte of a name, or the marker after it.
  bool step_name(char byte) {
    if (byte == '[' && !name_.empty()) {
      marker_ = byte;
      state_ = State::marker;
      return true;
    }
    name_ += byte;
    return is_name(byte);
  }

  bool step_marker(char byte) {
    const std::string longer = marker_ + byte;
    const bool id_allowed = id_.empty();
    if (!kArgs.starts_with(longer) && !(id_allowed && kCallId.starts_with(longer))) return false;
    marker_ = longer;
    if (marker_ == kArgs) state_ = State::before_arguments;
    if (marker_ == kCallId) state_ = State::call_id;
    return true;
  }

  void push_call(char byte, OutputDelta& out) {
    const CallObject::Step result = push_object(object_, byte, out);
    if (object_.certain()) held_.clear();
    if (result == CallObject::Step::more) return;
    if (result == CallObject::Step::done) {
      state_ = in_list_ ? State::after_object : State::text;
    } else {
      held_ += object_.held();
      fail(out);
      push_text(byte, out);
    }
    object_ = CallObject(true);
  }

  void push_arguments(char byte, OutputDelta& out) {
    add_arguments(std::string_view(&byte, 1), out);
    if (arguments_.push(byte) == JsonValueEnd::Position::last) state_ = State::text;
  }

  State state_ = State::text;
  TagMatcher tags_{"[TOOL_CALLS]"};
  bool in_list_ = false;
  CallObject object_{true};
  std::string held_;
  std::string name_, id_, marker_;
  JsonValueEnd arguments_;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_mistral_parser(std::uint64_t seed) {
  return std::make_unique<MistralParser>(CallIds(seed, "", kIdLength));
}

}  // namespace nvllm::launcher
