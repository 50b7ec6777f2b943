// Byte-pair encoding: from a word to token ids.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/merge_table.h"
#include "tokenizer/token_table.h"
#include "tokenizer/word_cache.h"

namespace nvllm::tokenizer {

// A BPE model as a file describes it, whatever the kind of file.
struct BpeVocabulary {
  TokenTable tokens;
  MergeTable merges;
  std::optional<std::string> unk_token;
  bool fuse_unk = false;       // neighbouring unknown characters become one unk_token
  bool byte_fallback = false;  // unknown characters become their bytes' tokens <0x00> … <0xFF>
  bool ignore_merges =
      false;  // a word that is a token is that token, even if merges do not lead there
};

// What encoding works with and keeps between words. One per thread, and for one Bpe only.
class BpeScratch {
 private:
  friend class Bpe;

  struct Symbol {
    TokenId id;
    std::uint32_t previous, next;
  };
  WordCache cache;
  std::vector<TokenId> ids;
  std::string chars;
  std::vector<Symbol> symbols;
  std::vector<std::uint64_t> queue;
};

// Concurrent encoders are fine. Merges are done by rank, of equal ones the leftmost first, with a
// priority queue: n log n in the length of a word.
class Bpe {
 public:
  explicit Bpe(BpeVocabulary vocabulary);

  const TokenTable& tokens() const { return vocabulary_.tokens; }

  // Whether all bytes have tokens in the byte-level alphabet, so that encode_bytes may be used.
  bool has_all_bytes() const { return has_all_bytes_; }

  // Appends the ids of a word, given as UTF-8 in the vocabulary's own alphabet.
  void encode_text(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

  // The same for plain bytes, with a byte-level vocabulary.
  void encode_bytes(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr TokenId kNoToken = static_cast<TokenId>(-1);

  void encode_segment(std::string_view text, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void start_with_chars(std::string_view text, std::vector<TokenId>& ids) const;
  TokenId find_char(std::string_view c) const;
  TokenId unk_id() const;

  void merge(BpeScratch& scratch) const;
  void merge_few(BpeScratch& scratch) const;
  void merge_many(BpeScratch& scratch) const;

  BpeVocabulary vocabulary_;
  std::array<TokenId, 256> byte_tokens_;      // of the byte-level alphabet
  std::array<TokenId, 256> fallback_tokens_;  // <0x00> …
  std::array<TokenId, 128> ascii_tokens_;
  bool has_all_bytes_ = false;
  // No token comes from two different merges.
  bool merges_are_unique_ = false;
  // No merge reaches over the place between another character and U+2581, so that words before and
  // after it can be encoded (and cached) on their own.
  bool words_start_at_metaspace_ = false;
};

}  // namespace nvllm::tokenizer
