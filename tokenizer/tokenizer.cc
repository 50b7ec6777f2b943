#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {

// Borrows scratch space from the tokenizer for one call.
class Tokenizer::ScratchLease {
 public:
  explicit ScratchLease(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    const std::lock_guard lock(tokenizer.mutex_);
    if (tokenizer.idle_.empty()) {
      scratch_ = std::make_unique<BpeScratch>();
    } else {
      scratch_ = std::move(tokenizer.idle_.back());
      tokenizer.idle_.pop_back();
    }
  }
  ~ScratchLease() {
    const std::lock_guard lock(tokenizer_.mutex_);
    tokenizer_.idle_.push_back(std::move(scratch_));
  }
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  BpeScratch& operator*() { return *scratch_; }

 private:
  const Tokenizer& tokenizer_;
  std::unique_ptr<BpeScratch> scratch_;
};

Tokenizer::Tokenizer(TokenizerParts parts)
    : bpe_(std::move(parts.vocabulary)),
      added_(std::move(parts.added)),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      prefix_(parts.post_processor.prefix()),
      suffix_(parts.post_processor.suffix()),
      decoder_(std::move(parts.decoder)),
      words_are_bytes_(bpe_.has_all_bytes() && pre_tokenizer_.drop_final_byte_chars()),
      end_id_(bpe_.tokens().end_id()) {
  added_.build(normalizer_);
  for (const auto& [id, token] : added_.all()) end_id_ = std::max(end_id_, id + 1);
}

Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (valid_utf8_prefix(text) == text.size()) return encode_valid(text, {}, add_special_tokens);
  std::string repaired;
  append_valid_utf8(repaired, text);
  return encode_valid(repaired, {}, add_special_tokens);
}

std::vector<TokenId> Tokenizer::encode(const MarkedText& text, bool add_special_tokens) const {
  if (valid_utf8_prefix(text.text) == text.text.size()) {
    return encode_valid(text.text, text.marks, add_special_tokens);
  }
  const MarkedText repaired = map_parts(text, [](std::string_view part) {
    std::string valid;
    append_valid_utf8(valid, part);
    return valid;
  });
  return encode_valid(repaired.text, repaired.marks, add_special_tokens);
}

std::vector<TokenId> Tokenizer::encode_valid(std::string_view text, const Marks& marks,
                                             bool add_special_tokens) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4);
  if (add_special_tokens) ids = prefix_;
  ScratchLease scratch(*this);
  added_.split_raw(text, marks, [&](const AddedTokenPart& part) {
    if (part.id) {
      ids.push_back(*part.id);
      return;
    }
    Marks of_part;
    if (added_.normalizes_special_tokens()) of_part.add_part(marks, part.begin, part.end, 0);
    encode_piece(text.substr(part.begin, part.end - part.begin), of_part, part.begin == 0, *scratch,
                 ids);
  });
  if (add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

// Encodes text between added tokens that were found before normalization. `marks`: empty if they do
// not matter for those found after it.
void Tokenizer::encode_piece(std::string_view text, const Marks& marks, bool at_start,
                             BpeScratch& scratch, std::vector<TokenId>& ids) const {
  NormalizedText normalized;
  Marks normalized_marks = marks;
  if (!normalizer_.empty()) {
    normalized = normalizer_.apply(text);
    if (!marks.empty()) {
      normalized_marks = normalizer_.marks_of(MarkedText{std::string(text), marks}, normalized);
    }
    text = normalized.text;
    at_start = at_start && normalized.keeps_start;
  }
  const WordSink encode_word = [&](std::string_view word) {
    if (words_are_bytes_) {
      bpe_.encode_bytes(word, scratch, ids);
    } else {
      bpe_.encode_text(word, scratch, ids);
    }
  };
  added_.split_normalized(text, normalized_marks, [&](const AddedTokenPart& part) {
    if (part.id) {
      ids.push_back(*part.id);
      return;
    }
    pre_tokenizer_.run(text.substr(part.begin, part.end - part.begin), at_start && part.begin == 0,
                       encode_word);
  });
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const {
  std::string text;
  DecoderStream stream(decoder_);
  for (const TokenId id : ids) {
    const auto token = token_text(id);
    if (!token || (skip_special_tokens && is_special(id))) continue;
    stream.push(*token, text);
  }
  stream.finish(text);
  return text;
}

std::optional<std::string_view> Tokenizer::token_text(TokenId id) const {
  if (const std::string* text = added_.text(id)) return *text;
  return bpe_.tokens().text(id);
}

std::optional<TokenId> Tokenizer::token_id(std::string_view token) const {
  if (const auto id = added_.find(token)) return id;
  return bpe_.tokens().find(token);
}

bool Tokenizer::is_special(TokenId id) const {
  return added_.is_special(id);
}

}  // namespace nvllm::tokenizer
