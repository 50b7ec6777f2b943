// Text of a sequence whose tokens come one by one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/stop_strings.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::tokenizer {

struct StreamOptions {
  bool skip_special_tokens = true;
  // The stream ends before the first of these in the text. Empty ones are ignored.
  std::vector<std::string> stop_strings = {};
};

// All pieces together are what Tokenizer::decode makes of all ids, or the part of it before the
// first stop string: the one that ends first, and of those that end at one place the longest. Each
// piece is valid UTF-8, and no part of a stop string is in one. Text is held back only while a
// later token may change it: unfinished characters, runs of byte-fallback tokens, what may become a
// stop string. In all, the work is linear in the text. Not thread-safe; the tokenizer must outlive
// it.
class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Tokenizer& tokenizer, StreamOptions options = {});

  // The text that this token makes certain; often empty. Nothing once stopped.
  std::string push(TokenId id);
  // The rest, after the last token.
  std::string finish();

  // Whether a stop string was found.
  bool stopped() const { return stopped_; }
  const std::string& stop_string() const { return stop_string_; }  // that one

 private:
  // Passes on what of the new text cannot be part of a stop string.
  std::string release(std::string text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  DecoderStream decoder_;
  StopStrings stops_;
  StopStrings::State state_ = StopStrings::kStart;
  std::string held_;  // the beginning of what may become a stop string
  bool stopped_ = false;
  std::string stop_string_;
};

}  // namespace nvllm::tokenizer
