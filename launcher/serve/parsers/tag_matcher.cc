#include "launcher/serve/parsers/tag_matcher.h"

#include <utility>

#include "base/check.h"

namespace nvllm::launcher {

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

}  // namespace nvllm::launcher
