// Appends values to JSON text. Used for streamed tokens, so it is minimal: no tree of values, no
// allocation except for the text itself.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// The content of a string without quotes. The text must be valid UTF-8, as detokenized text is.
void append_json_escaped(std::string& out, std::string_view text);
// A string in quotes; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);
// The shortest text that parses to the same number; null for values that JSON does not support.
void append_json_number(std::string& out, std::int64_t number);
void append_json_number(std::string& out, float number);

template <typename List, typename AppendItem>
void append_json_list(std::string& out, const List& list, AppendItem append_item) {
  out += '[';
  bool first = true;
  for (const auto& item : list) {
    if (!first) out += ',';
    first = false;
    append_item(out, item);
  }
  out += ']';
}

void append_json_ids(std::string& out, const std::vector<std::int32_t>& ids);

}  // namespace nvllm::launcher
