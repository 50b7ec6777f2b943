#include "launcher/bench/serve/event_stream.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace nvllm::launcher {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Iterates over the keys of all objects in a JSON text, at any depth.
class KeyScanner {
 public:
  explicit KeyScanner(std::string_view json) : at_(json.data()), end_(at_ + json.size()) {}

  // Finds the next key; false: there is none, or the text ends within a string.
  bool next() {
    while (find_string()) {
      skip_spaces();
      if (at_ == end_ || *at_ != ':') continue;  // a string that is a value
      ++at_;
      skip_spaces();
      return true;
    }
    return false;
  }

  std::string_view key() const { return string_; }
  bool torn() const { return torn_; }
  // Properties of the key's value.
  char first() const { return at_ < end_ ? *at_ : '\0'; }
  bool nonempty_string() const { return first() == '"' && end_ - at_ > 1 && at_[1] != '"'; }

  std::optional<std::int64_t> number() const {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(at_, end_, number);
    return error == std::errc{} ? std::optional(number) : std::nullopt;
  }

  // Whether an array or an object has something in it.
  bool nonempty() const {
    const char* at = at_ + 1;
    while (at < end_ && is_space(*at)) ++at;
    return (first() == '[' || first() == '{') && at < end_ && *at != ']' && *at != '}';
  }

  // How many numbers an array has.
  std::int64_t elements() const {
    if (first() != '[' || !nonempty()) return 0;
    return 1 + std::count(at_, std::find(at_, end_, ']'), ',');
  }

 private:
  bool find_string() {
    at_ = find_quote();
    if (at_ == end_) return false;
    const char* const begin = ++at_;
    while (true) {
      at_ = find_quote();
      if (at_ == end_) return !(torn_ = true);
      // The quote ends the string unless an odd number of backslashes precedes it.
      const char* before = at_;
      while (before > begin && before[-1] == '\\') --before;
      ++at_;
      if ((at_ - 1 - before) % 2 == 0) break;
    }
    string_ = {begin, static_cast<std::size_t>(at_ - 1 - begin)};
    return true;
  }

  const char* find_quote() const {
    const void* const found = std::memchr(at_, '"', static_cast<std::size_t>(end_ - at_));
    return found != nullptr ? static_cast<const char*>(found) : end_;
  }

  void skip_spaces() {
    while (at_ < end_ && is_space(*at_)) ++at_;
  }

  const char* at_;
  const char* end_;
  std::string_view string_;
  bool torn_ = false;
};

void take_key(StreamChunk& chunk, const KeyScanner& scanner) {
  const std::string_view key = scanner.key();
  switch (key.front()) {
    case 'c':
      if (key == "choices") chunk.choice = scanner.nonempty();
      if (key == "content") chunk.text |= scanner.nonempty_string();
      if (key == "completion_tokens") chunk.completion_tokens = scanner.number();
      if (key == "cached_tokens") chunk.cached_tokens = scanner.number();
      break;
    case 'e':
      if (key == "error") chunk.error |= scanner.first() != 'n';
      break;
    case 'f':
      if (key == "finish_reason") chunk.finished |= scanner.first() == '"';
      break;
    case 'p':
      if (key == "prompt_tokens") chunk.prompt_tokens = scanner.number();
      break;
    case 'r':
      if (key == "reasoning" || key == "reasoning_content") chunk.text |= scanner.nonempty_string();
      if (key == "role") chunk.role = true;
      break;
    case 't':
      if (key == "text") chunk.text |= scanner.nonempty_string();
      if (key == "tool_calls") chunk.text |= scanner.nonempty();
      if (key == "token_ids") chunk.token_ids += scanner.elements();
      break;
    default: break;
  }
}

}  // namespace

StreamChunk scan_chunk(std::string_view json) {
  while (!json.empty() && is_space(json.back())) json.remove_suffix(1);
  StreamChunk chunk;
  if (!json.starts_with('{') || !json.ends_with('}')) return chunk;
  KeyScanner scanner(json);
  while (scanner.next()) {
    if (!scanner.key().empty()) take_key(chunk, scanner);
  }
  chunk.valid = !scanner.torn();
  return chunk;
}

}  // namespace nvllm::launcher
