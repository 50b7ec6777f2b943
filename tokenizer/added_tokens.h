// Added tokens, such as <|im_start|>, are matched in the text as a whole, before it is split into
// words.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/bpe/vocabulary.h"
#include "tokenizer/marked_text.h"
#include "tokenizer/normalizer.h"

namespace nvllm::tokenizer {

struct AddedToken {
  std::string content;
  bool single_word = false;  // only between characters that are not \w
  bool lstrip = false;       // includes the spaces on its left
  bool rstrip = false;       // includes the spaces on its right
  bool normalized = true;    // is matched in normalized text
  bool special = false;      // can be omitted from decoded text
  bool operator==(const AddedToken&) const = default;
};

// A part of a text: an added token, or the text between two of them.
struct AddedTokenPart {
  std::size_t begin, end;
  std::optional<TokenId> id;
};

// Finds added tokens in a text with a trie; the longest of those that start at the same byte. Takes
// time proportional to the text (times the longest token, in bad cases).
class TokenFinder {
 public:
  void add(std::string_view text, std::size_t value);
  struct Match {
    std::size_t begin, end, value;
  };
  // accepts(match): whether to use the match.
  using Accepts = std::function<bool(const Match&)>;
  std::optional<Match> next(std::string_view text, std::size_t from, const Accepts& accepts) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Node {
    std::vector<std::pair<char, std::uint32_t>> children;
    std::size_t value = kNone;
  };
  const std::uint32_t* child(std::uint32_t node, char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::bitset<256> first_bytes_;
};

class AddedTokens {
 public:
  // Adds tokens in order. A token of the vocabulary keeps its id, others get the next free id: the
  // reference does so, whatever ids the file gives.
  void add(const std::vector<AddedToken>& tokens, const TokenTable& vocabulary);
  // Call after all tokens are added.
  void build(const Normalizer& normalizer);

  std::optional<TokenId> find(std::string_view content) const;
  // The text of a decoded token: its content, normalized if it is matched in normalized text.
  // nullptr: the id is not an added token.
  const std::string* text(TokenId id) const;
  // Whether text(id) is the content of a special token. (Same condition as in the reference: a
  // special token that its normalizer changes is not omitted from decoded text.)
  bool is_special(TokenId id) const;
  const std::unordered_map<TokenId, AddedToken>& all() const { return by_id_; }

  // Split a text at its added tokens, before and after normalization. A special token is not
  // recognized if any byte of it is marked.
  using PartSink = std::function<void(const AddedTokenPart&)>;
  void split_raw(std::string_view text, const Marks& marks, const PartSink& sink) const {
    split(raw_, text, marks, sink);
  }
  void split_normalized(std::string_view text, const Marks& marks, const PartSink& sink) const {
    split(normalized_, text, marks, sink);
  }
  // Whether split_normalized() uses marks at all.
  bool normalizes_special_tokens() const { return normalizes_special_tokens_; }

 private:
  void split(const TokenFinder& finder, std::string_view text, const Marks& marks,
             const PartSink& sink) const;

  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_map<TokenId, AddedToken> by_id_;
  std::unordered_map<TokenId, std::string> texts_;
  std::unordered_set<std::string> special_;
  std::vector<AddedToken> in_order_;  // special ones first, in matching order
  std::vector<AddedToken> classic_;
  TokenFinder raw_, normalized_;
  bool normalizes_special_tokens_ = false;
};

}  // namespace nvllm::tokenizer
