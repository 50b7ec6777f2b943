// Text to token ids and back, exactly as Hugging Face tokenizers does it.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"

namespace nvllm::tokenizer {

// The parts of a tokenizer, wherever they were read from.
struct TokenizerParts {
  BpeVocabulary vocabulary;
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
};

// Thread-safe: any number of threads may use one tokenizer at a time.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);
  ~Tokenizer();

  // The ids of a text; special tokens in it are recognised. What is not UTF-8 counts as U+FFFD.
  // add_special_tokens puts those of the model's template (<bos> …) around them.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const;

  // Ids that no token has are passed over.
  std::string decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const;

  // The token's own spelling (byte-level alphabet, U+2581 …); nothing for an id that no token has.
  std::optional<std::string_view> token_text(TokenId id) const;
  std::optional<TokenId> token_id(std::string_view token) const;
  bool is_special(TokenId id) const;
  // One more than the largest id.
  TokenId end_id() const { return end_id_; }

  const Decoder& decoder() const { return decoder_; }

 private:
  class ScratchLease;

  void encode_piece(std::string_view text, bool at_start, BpeScratch& scratch,
                    std::vector<TokenId>& ids) const;

  Bpe bpe_;
  AddedTokens added_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::vector<TokenId> prefix_, suffix_;
  Decoder decoder_;
  bool words_are_bytes_;
  TokenId end_id_;

  // Scratch space that no call uses just now; its caches stay warm.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> idle_;  // guarded by mutex_
};

}  // namespace nvllm::tokenizer
