#include "launcher/chat/thinking_text.h"

#include <algorithm>
#include <utility>

namespace nvllm::launcher {
namespace {

constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
constexpr const char *kDim = "\033[2m", *kPlain = "\033[0m";

// How many of the text's last bytes may be the beginning of the tag.
std::size_t started(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

ThinkingText::ThinkingText(bool dimmed, bool thinking) : dimmed_(dimmed), thinking_(thinking) {}

std::string ThinkingText::push(std::string_view piece) {
  if (!dimmed_) return std::string(piece);
  std::string all = std::exchange(held_, {}).append(piece);
  std::string out;
  while (true) {
    const std::string_view tag = thinking_ ? kEnd : kBegin;
    const std::size_t at = all.find(tag);
    const bool found = at != std::string::npos;
    const std::size_t size =
        found ? at + (thinking_ ? tag.size() : 0) : all.size() - started(all, tag);
    if (size > 0) out += thinking_ ? kDim + all.substr(0, size) + kPlain : all.substr(0, size);
    all.erase(0, size);
    if (!found) break;
    thinking_ = !thinking_;
  }
  held_ = std::move(all);
  return out;
}

std::string ThinkingText::finish() {
  if (held_.empty()) return "";
  return thinking_ ? kDim + std::exchange(held_, {}) + kPlain : std::exchange(held_, {});
}

}  // namespace nvllm::launcher
