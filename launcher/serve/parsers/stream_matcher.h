// Matchers for a text that arrives byte by byte: TagMatcher finds tags, CallObject reads the JSON
// object of a tool call.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

class TagMatcher {
 public:
  static constexpr int kNone = -1;

  // The first byte of a tag must not occur elsewhere in any tag, and no tag may be a prefix of
  // another. So a failed match can only restart at the byte where it failed.
  TagMatcher(std::initializer_list<std::string_view> tags);

  // Appends text that can no longer be part of a tag. Returns the index of the tag that ends with
  // this byte, or kNone.
  int push(char byte, std::string& text);
  // At the end of the input: appends a held-back partial tag.
  void finish(std::string& text);

  std::string_view tag(int index) const { return tags_[static_cast<std::size_t>(index)]; }

 private:
  std::vector<std::string_view> tags_;
  std::string held_;  // a partial tag
};

// JSON's white space.
constexpr bool is_space(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}
constexpr bool is_space(std::string_view text) {
  for (const char byte : text) {
    if (!is_space(byte)) return false;
  }
  return true;
}

// Finds the end of a JSON value. Checks brackets and strings only.
class JsonValueEnd {
 public:
  enum class Position { inside, last, past };
  // The position of the next byte of the text: in the value, at its end, or after it.
  Position push(char byte);
  bool in_string() const { return in_string_; }

 private:
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

class CallObject {
 public:
  // any_keys: other keys may have any name. Otherwise only "type" and "id" may precede the
  // arguments, and these are required, so that other objects are soon distinguished from calls.
  explicit CallObject(bool any_keys) : any_keys_(any_keys) {}

  // failed: the byte cannot belong to a call, and was not consumed.
  enum class Step { more, done, failed };
  // The first byte is the opening brace. Do not call it after `done` or `failed`.
  Step push(char byte);

  // Whether this is certainly a call: its name is known, and its arguments have started.
  bool certain() const { return certain_; }
  const std::string& name() const { return name_; }
  // New text of the arguments. Empty until certain().
  std::string take_arguments();
  // The consumed text, until certain(); after that, the text after the arguments.
  const std::string& held() const { return held_; }

 private:
  enum class State { begin, first_key, key, in_key, colon, value, in_value, after_value };
  enum class Key { name, arguments, other };

  bool accept(char byte);
  bool accept_between(char byte);
  bool accept_key(char byte);
  bool begin_value(char byte);
  bool accept_value(char byte);
  bool end_value();
  bool end_object();
  void make_certain();

  bool any_keys_;
  State state_ = State::begin;
  Key key_ = Key::other;
  std::string key_text_;   // between its quotation marks, with escapes
  std::string name_text_;  // the same with quotation marks
  JsonValueEnd value_;
  bool ended_ = false, certain_ = false, have_arguments_ = false;
  std::string name_, arguments_, held_;
};

}  // namespace nvllm::launcher
