// TagMatcher: finds tags in a text that arrives byte by byte.
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

}  // namespace nvllm::launcher
