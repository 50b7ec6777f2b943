// Tokenizer converts text to token ids and back, exactly like Hugging Face tokenizers.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/bpe/vocabulary.h"
#include "tokenizer/decoder.h"
#include "tokenizer/marked_text.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace nvllm::tokenizer {

// Adds special tokens around a text: <bos> $A <eos>. Templates are applied in sequence, each to the
// result of the previous one.
class PostProcessor {
 public:
  struct Template {
    std::vector<TokenId> before, after;
  };
  void add(Template item) { templates_.push_back(std::move(item)); }
  bool empty() const { return templates_.empty(); }

  std::vector<TokenId> prefix() const {
    std::vector<TokenId> ids;
    for (auto item = templates_.rbegin(); item != templates_.rend(); ++item) {
      ids.insert(ids.end(), item->before.begin(), item->before.end());
    }
    return ids;
  }
  std::vector<TokenId> suffix() const {
    std::vector<TokenId> ids;
    for (const Template& item : templates_) {
      ids.insert(ids.end(), item.after.begin(), item.after.end());
    }
    return ids;
  }

 private:
  std::vector<Template> templates_;
};

// The parts of a tokenizer, independent of file formats. Text passes through them in this order:
// added tokens are split off, normalizer, pre-tokenizer, BPE, post-processor; ids pass through the
// decoder.
struct TokenizerParts {
  BpeVocabulary vocabulary;
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
};

// Thread-safe.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);
  ~Tokenizer();

  // The ids of a text. Special tokens in it are recognized, and invalid UTF-8 is treated as U+FFFD.
  // add_special_tokens adds those of the model's template (<bos>, <eos>).
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const;
  // The same, but marked bytes never form a special token, neither alone nor with others. Added
  // tokens that are not special (<think> of Qwen3, runs of spaces) are recognized everywhere. If
  // the text contains no special token, marks change no id.
  std::vector<TokenId> encode(const MarkedText& text, bool add_special_tokens) const;

  // The text of ids. Unknown ids are skipped.
  std::string decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const;

  // The token as written in the vocabulary (byte-level alphabet, U+2581); nullopt: unknown id.
  std::optional<std::string_view> token_text(TokenId id) const;
  std::optional<TokenId> token_id(std::string_view token) const;
  bool is_special(TokenId id) const;
  // One more than the largest id.
  TokenId end_id() const { return end_id_; }

  const Decoder& decoder() const { return decoder_; }

 private:
  class ScratchLease;

  std::vector<TokenId> encode_valid(std::string_view text, const Marks& marks,
                                    bool add_special_tokens) const;
  void encode_piece(std::string_view text, const Marks& marks, bool at_start, BpeScratch& scratch,
                    std::vector<TokenId>& ids) const;

  Bpe bpe_;
  AddedTokens added_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::vector<TokenId> prefix_, suffix_;
  Decoder decoder_;
  bool words_are_bytes_;
  TokenId end_id_;

  // Unused scratch space, whose caches stay warm.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> idle_;  // guarded by mutex_
};

}  // namespace nvllm::tokenizer
