// TagMatcher: finds tags in a text that comes byte by byte.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

class TagMatcher {
 public:
  static constexpr int kNone = -1;

  // The first byte of a tag stands nowhere else in any of them, and no tag begins with another one.
  // So a match that fails can only begin anew at the byte where it failed.
  TagMatcher(std::initializer_list<std::string_view> tags);

  // Appends to `text` what cannot be part of a tag any more. Returns the index of the tag that ends
  // with this byte, or kNone.
  int push(char byte, std::string& text);
  // No more bytes come: appends the beginning of a tag that was held back.
  void finish(std::string& text);

  std::string_view tag(int index) const { return tags_[static_cast<std::size_t>(index)]; }

 private:
  std::vector<std::string_view> tags_;
  std::string held_;  // how a tag begins
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

}  // namespace nvllm::launcher
