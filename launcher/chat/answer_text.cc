#include "launcher/chat/answer_text.h"

#include <utility>

namespace nvllm::launcher {
namespace {

constexpr std::string_view kBegin = "<think>\n", kEnd = "\n</think>\n\n";

OutputParserOptions channel_options() {
  return {.reasoning_parser = "openai_gptoss"};
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

// Byte by byte, so that reasoning and content stay in their order.
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

}  // namespace nvllm::launcher
