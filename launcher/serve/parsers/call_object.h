// CallObject: parses {"name": "f", "arguments": {...}} byte by byte. The arguments may also be
// called "parameters", and the keys may have any order.
#pragma once

#include <string>
#include <string_view>

namespace nvllm::launcher {

// Finds the end of a JSON value. Checks brackets and strings only.
class JsonValueEnd {
 public:
  enum class Place { inside, last, past };
  // The position of the next byte of the text: in the value, at its end, or after it.
  Place push(char byte);
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
