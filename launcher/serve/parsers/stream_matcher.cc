#include "launcher/serve/parsers/stream_matcher.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/json_text.h"

namespace nvllm::launcher {

// --- TagMatcher ---

TagMatcher::TagMatcher(std::initializer_list<std::string_view> tags) : tags_(tags) {
  for (const std::string_view tag : tags_) {
    for (const std::string_view other : tags_) {
      NVLLM_CHECK(other.find(tag[0], 1) == std::string_view::npos);
      NVLLM_CHECK(tag.data() == other.data() || !tag.starts_with(other));
    }
  }
}

int TagMatcher::push(char byte, std::string& text) {
  held_ += byte;
  for (std::size_t i = 0; i < tags_.size(); ++i) {
    if (!tags_[i].starts_with(held_)) continue;
    if (tags_[i].size() > held_.size()) return kNone;
    held_.clear();
    return static_cast<int>(i);
  }
  held_.pop_back();
  if (held_.empty()) {
    text += byte;
    return kNone;
  }
  text += std::exchange(held_, {});
  return push(byte, text);
}

void TagMatcher::finish(std::string& text) {
  text += std::exchange(held_, {});
}

// --- CallObject ---

namespace {

bool is_control(char byte) {
  return static_cast<unsigned char>(byte) < 0x20;
}

// The text of a JSON string; empty if it is none.
std::string unescaped(std::string_view json) {
  try {
    return parse_json(json).get<std::string>();
  } catch (const nlohmann::json::exception&) {
    return "";
  }
}

}  // namespace

JsonValueEnd::Position JsonValueEnd::push(char byte) {
  if (in_string_) {
    const bool quotes = byte == '"' && !escaped_;
    escaped_ = byte == '\\' && !escaped_;
    if (!quotes) return Position::inside;
    in_string_ = false;
    return depth_ == 0 ? Position::last : Position::inside;
  }
  if (byte == '"') in_string_ = true;
  if (byte == '{' || byte == '[') ++depth_;
  if (byte == '}' || byte == ']') {
    if (depth_ == 0) return Position::past;
    return --depth_ == 0 ? Position::last : Position::inside;
  }
  return depth_ == 0 && (byte == ',' || is_space(byte)) ? Position::past : Position::inside;
}

CallObject::Step CallObject::push(char byte) {
  const bool was_certain = certain_;
  const bool in_arguments = state_ == State::in_value && key_ == Key::arguments;
  if (!accept(byte)) return Step::failed;
  if (!certain_ || (was_certain && !in_arguments)) held_ += byte;
  return ended_ ? Step::done : Step::more;
}

std::string CallObject::take_arguments() {
  return certain_ ? std::exchange(arguments_, {}) : std::string();
}

// Whether the byte is valid here.
bool CallObject::accept(char byte) {
  switch (state_) {
    case State::in_key: return accept_key(byte);
    case State::in_value: return accept_value(byte);
    default: return is_space(byte) ? state_ != State::begin : accept_between(byte);
  }
}

bool CallObject::accept_between(char byte) {
  const auto go_to = [&](State next) {
    state_ = next;
    return true;
  };
  switch (state_) {
    case State::begin: return byte == '{' && go_to(State::first_key);
    case State::first_key:
    case State::key:
      if (byte == '}' && state_ == State::first_key) return end_object();
      key_text_.clear();
      value_ = JsonValueEnd();
      value_.push(byte);
      return byte == '"' && go_to(State::in_key);
    case State::colon: return byte == ':' && go_to(State::value);
    case State::value: return begin_value(byte);
    default:
      if (byte == '}') return end_object();
      return byte == ',' && go_to(State::key);
  }
}

bool CallObject::accept_key(char byte) {
  if (is_control(byte)) return false;
  if (value_.push(byte) == JsonValueEnd::Position::inside) {
    key_text_ += byte;
    return true;
  }
  key_ = Key::other;
  if (key_text_ == "name" && name_.empty()) key_ = Key::name;
  if ((key_text_ == "arguments" || key_text_ == "parameters") && !have_arguments_) {
    key_ = Key::arguments;
  }
  state_ = State::colon;
  return key_ != Key::other || any_keys_ || certain_ || key_text_ == "type" || key_text_ == "id";
}

bool CallObject::begin_value(char byte) {
  if (key_ == Key::name && byte != '"') return false;
  if (key_ == Key::arguments && byte != '{') return false;
  value_ = JsonValueEnd();
  state_ = State::in_value;
  if (key_ == Key::arguments) {
    have_arguments_ = true;
    if (!name_.empty()) make_certain();
  }
  return accept_value(byte);
}

bool CallObject::accept_value(char byte) {
  // JSON never has this outside of strings: it starts the tag that closes an incomplete call.
  if (byte == '<' && !value_.in_string()) return false;
  // Models write raw newlines in arguments. Elsewhere an unterminated string is not a call.
  if (key_ != Key::arguments && value_.in_string() && is_control(byte)) return false;
  const JsonValueEnd::Position position = value_.push(byte);
  if (position == JsonValueEnd::Position::past) {
    state_ = State::after_value;
    return is_space(byte) || accept_between(byte);
  }
  if (key_ == Key::name) name_text_ += byte;
  if (key_ == Key::arguments) arguments_ += byte;
  return position == JsonValueEnd::Position::inside || end_value();
}

bool CallObject::end_value() {
  state_ = State::after_value;
  if (key_ != Key::name) return true;
  name_ = unescaped(name_text_);
  if (name_.empty()) return false;
  if (have_arguments_) make_certain();
  return true;
}

bool CallObject::end_object() {
  if (!certain_) {
    // A call without arguments.
    if (!any_keys_ || name_.empty()) return false;
    arguments_ = "{}";
    make_certain();
  }
  ended_ = true;
  return true;
}

void CallObject::make_certain() {
  certain_ = true;
  held_.clear();
}

}  // namespace nvllm::launcher
