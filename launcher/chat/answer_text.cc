#include "launcher/chat/answer_text.h"

#include <algorithm>
#include <utility>

namespace nvllm::launcher {

namespace {

constexpr std::string_view kBegin = "<think>\n", kEnd = "\n</think>\n\n";

OutputParserOptions channel_options() {
  return {.reasoning_parser = "openai_gptoss"};
}

constexpr std::string_view kOpenTag = "<think>", kCloseTag = "</think>";
constexpr const char *kDim = "\033[2m", *kPlain = "\033[0m";

// How many of the text's last bytes may be the start of the tag.
std::size_t started(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

bool writes_channels(const tokenizer::Tokenizer& tokenizer) {
  for (const std::string_view tag : {"<|start|>", "<|channel|>", "<|message|>"}) {
    const auto id = tokenizer.token_id(tag);
    if (!id || !tokenizer.is_special(*id)) return false;
  }
  return true;
}

std::string without_reasoning(std::string_view text) {
  if (!text.starts_with(kBegin)) return std::string(text);
  const std::size_t end = text.find(kEnd);
  return end == std::string_view::npos ? "" : std::string(text.substr(end + kEnd.size()));
}

AnswerText::AnswerText(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops)
    : channels_(writes_channels(tokenizer) ? make_output_parser(channel_options()) : nullptr),
      tokens_(tokenizer,
              {.kept_special_tokens = channels_ ? kept_tokens(channel_options(), tokenizer)
                                                : std::vector<tokenizer::TokenId>{},
               .stop_strings = std::move(stops)}) {}

std::string AnswerText::push(tokenizer::TokenId id) {
  return translated(tokens_.push(id));
}

std::string AnswerText::finish() {
  std::string text = translated(tokens_.finish());
  if (channels_) text += with_tags(channels_->finish());
  return text;
}

// Byte by byte, so that the order of reasoning and content is kept.
std::string AnswerText::translated(const std::string& text) {
  if (!channels_) return text;
  std::string all;
  for (const char& byte : text) all += with_tags(channels_->push({&byte, 1}));
  return all;
}

std::string AnswerText::with_tags(const OutputDelta& delta) {
  std::string text;
  if (!delta.reasoning.empty()) {
    if (!std::exchange(reasons_, true)) text += kBegin;
    text += delta.reasoning;
  }
  if (!delta.content.empty()) {
    if (std::exchange(reasons_, false)) text += kEnd;
    text += delta.content;
  }
  return text;
}

ThinkingText::ThinkingText(bool dimmed, bool thinking) : dimmed_(dimmed), thinking_(thinking) {}

std::string ThinkingText::push(std::string_view piece) {
  if (!dimmed_) return std::string(piece);
  std::string all = std::exchange(held_, {}).append(piece);
  std::string out;
  while (true) {
    const std::string_view tag = thinking_ ? kCloseTag : kOpenTag;
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
