// AnswerText: the text of an answer's tokens, as chats show and store it: one text, in which
// reasoning is between <think> and </think>. Most models write this form themselves. gpt-oss models
// write messages in channels (launcher/serve/parsers/harmony_parser.cc): the reasoning becomes such
// a block, and the headers are removed. ThinkingText: formats it for a terminal.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/serve/parsers/output_parser.h"
#include "tokenizer/stream.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

// Whether the model writes messages in channels: its tokenizer has the special tokens for them.
bool writes_channels(const tokenizer::Tokenizer& tokenizer);

// The part of an answer that such a model gets in later prompts: the text without its reasoning.
std::string without_reasoning(std::string_view text);

class AnswerText {
 public:
  // The tokenizer must outlive it. stops: stop strings.
  AnswerText(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops);

  // Same as those of StreamDetokenizer.
  std::string push(tokenizer::TokenId id);
  std::string finish();
  bool stopped() const { return tokens_.stopped(); }

 private:
  std::string translated(const std::string& text);
  std::string with_tags(const OutputDelta& delta);

  std::unique_ptr<OutputParser> channels_;  // nullptr: the text is not in channels
  tokenizer::StreamDetokenizer tokens_;
  bool reasons_ = false;  // <think> has been written, but not </think>
};

// Dims the text between <think> and </think>, in a text that arrives in pieces.
class ThinkingText {
 public:
  // dimmed: if false, pieces pass unchanged. thinking: whether the text starts inside <think>.
  ThinkingText(bool dimmed, bool thinking);

  std::string push(std::string_view piece);
  std::string finish();

 private:
  bool dimmed_, thinking_;
  std::string held_;  // may be the start of a tag
};

}  // namespace nvllm::launcher
