// JsonReader reads large JSON files of known structure: the caller reads the expected values one by
// one, and no tree is built. Errors contain the position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nvllm::tokenizer {

class JsonReader {
 public:
  // The text must outlive the reader and be valid UTF-8 (an Error if not).
  explicit JsonReader(std::string_view text);
  // Reads a value inside a text that was already checked: one returned by raw_value().
  static JsonReader inside(std::string_view checked) { return JsonReader(checked, 0); }

  // The first character of the next value: one of { [ " t f n - 0..9
  char peek();

  // Call next_key until it returns false; read or skip one value after each true.
  void begin_object();
  bool next_key(std::string_view& key);

  // Call next_item until it returns false; read or skip one value after each true.
  void begin_array();
  bool next_item();

  // A view that these two functions return stays valid until the next string is read.
  std::string_view read_string();
  std::uint32_t read_uint32();
  bool read_bool();

  void skip_value() { raw_value(); }
  // Skips the next value and returns its text. Only brackets and strings in it have been checked.
  std::string_view raw_value();
  // Call after the last value: nothing may follow.
  void finish();

 private:
  JsonReader(std::string_view text, int) : text_(text) {}

  [[noreturn]] void fail_expected(std::string_view what) const;
  void skip_space();
  char next_char();  // after white space
  void expect(char c, std::string_view what);
  void skip_string();
  std::string_view unescape(std::size_t from);
  char32_t read_escaped_char();
  std::uint32_t read_hex4();

  std::string_view text_;
  std::size_t at_ = 0;
  bool first_ = false;  // nothing was read yet in the innermost object or array
  std::string scratch_;
};

}  // namespace nvllm::tokenizer
