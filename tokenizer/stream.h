// StreamDetokenizer yields the text of tokens that arrive one by one, up to a stop string.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace nvllm::tokenizer {

// Finds stop strings in a text that arrives in pieces, with an Aho-Corasick automaton, which is
// linear in the text for any stop strings.
class StopStrings {
 public:
  explicit StopStrings(const std::vector<std::string>& strings);

  using State = std::uint32_t;
  static constexpr State kStart = 0;

  State next(State state, char byte) const;
  // How many of the last bytes must be held back: they start a stop string, or are a complete one.
  std::uint32_t held(State state) const { return nodes_[state].depth; }
  // The length of the longest stop string that ends here; 0 if none does.
  std::uint32_t found(State state) const { return nodes_[state].found; }

 private:
  struct Node {
    char byte = 0;
    State first_child = 0, sibling = 0;  // 0: none
    State fallback = 0;                  // the longest proper suffix in the tree
    std::uint32_t depth = 0, found = 0;
  };
  State child(State state, char byte) const;
  void link_fallbacks();

  std::vector<Node> nodes_;
};

struct StreamOptions {
  bool skip_special_tokens = true;
  // Special tokens that are not skipped: tags that a parser looks for in the text.
  std::vector<TokenId> kept_special_tokens = {};
  // The stream ends before the first of these in the text. Empty ones are ignored.
  std::vector<std::string> stop_strings = {};
  // Replaces stop_strings if several streams share them; nullptr: use stop_strings.
  std::shared_ptr<const StopStrings> stops = nullptr;
  // The text of the first min_tokens tokens is not searched for stop strings.
  std::int64_t min_tokens = 0;
};

// The concatenated pieces are the result of Tokenizer::decode for all ids, cut before the first
// stop string (the one that ends first; the longest of those that end at the same byte). Each piece
// is valid UTF-8 and contains no part of a stop string. Text is held back only while a later token
// may change it: incomplete characters, runs of byte-fallback tokens, and starts of stop strings.
// The total work is linear in the text. Not thread-safe; the tokenizer must outlive the stream.
class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Tokenizer& tokenizer, StreamOptions options = {});

  // The text that this token completes; often empty. Always empty once stopped.
  std::string push(TokenId id);
  // The remaining text, after the last token.
  std::string finish();

  // Whether a stop string was found.
  bool stopped() const { return stopped_; }
  const std::string& stop_string() const { return stop_string_; }  // the one that was found

 private:
  // Returns the part of the held and new text that cannot belong to a stop string.
  std::string release(std::string text);
  bool skips(TokenId id) const;

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::vector<TokenId> kept_special_tokens_;
  DecoderStream decoder_;
  std::shared_ptr<const StopStrings> stops_;
  std::int64_t unsearched_;  // tokens whose text is not searched
  StopStrings::State state_ = StopStrings::kStart;
  std::string held_;  // possible start of a stop string
  bool stopped_ = false;
  std::string stop_string_;
};

}  // namespace nvllm::tokenizer
