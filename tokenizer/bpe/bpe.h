// Byte-pair encoding (BPE) converts a word to token ids.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/vocabulary.h"

namespace nvllm::tokenizer {

// A BPE model, independent of file formats.
struct BpeVocabulary {
  TokenTable tokens;
  MergeTable merges;
  std::optional<std::string> unk_token;
  bool fuse_unk = false;       // adjacent unknown characters become one unk_token
  bool byte_fallback = false;  // unknown characters become their bytes' tokens <0x00> … <0xFF>
  // A word that is a token becomes that token, even if merges do not yield it.
  bool ignore_merges = false;
};

// A direct-mapped cache of the ids of recent words. The hash of a word selects its only slot, which
// holds the latest word. Long words and words with many ids are not cached. Its size is fixed, 2
// MiB.
class WordCache {
 public:
  // A word's slot; valid until the next call of store().
  struct Slot {
    std::size_t index;
    bool cacheable;
  };

  Slot slot_of(std::string_view word) const {
    return {XXH3_64bits(word.data(), word.size()) & (kEntries - 1), word.size() <= kMaxBytes};
  }

  // The ids; empty if the word is not cached.
  std::span<const TokenId> find(Slot slot, std::string_view word) const {
    if (!slot.cacheable || entries_.empty()) return {};
    const Entry& entry = entries_[slot.index];
    if (word != std::string_view(entry.word.data(), entry.bytes)) return {};
    return {entry.ids.data(), entry.count};
  }

  void store(Slot slot, std::string_view word, std::span<const TokenId> ids) {
    if (!slot.cacheable || ids.size() > kMaxIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry& entry = entries_[slot.index];
    entry.bytes = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(ids.size());
    std::ranges::copy(word, entry.word.begin());
    std::ranges::copy(ids, entry.ids.begin());
  }

 private:
  static constexpr std::size_t kEntries = 1 << 15, kMaxBytes = 30, kMaxIds = 8;

  struct alignas(64) Entry {
    std::uint8_t bytes = 0, count = 0;
    std::array<char, kMaxBytes> word{};
    std::array<TokenId, kMaxIds> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;  // allocated when the first word is stored
};

// Temporary buffers for encoding, and a cache of words. One per thread, for one Bpe only.
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

// Thread-safe. Merges are applied by rank, the leftmost of equal ones first, with a priority queue:
// O(n log n) in the length of a word.
class Bpe {
 public:
  explicit Bpe(BpeVocabulary vocabulary);

  const TokenTable& tokens() const { return vocabulary_.tokens; }

  // Whether all bytes have tokens in the byte-level alphabet, so that encode_bytes may be used.
  bool has_all_bytes() const { return has_all_bytes_; }

  // Appends the ids of a word, given as UTF-8 in the vocabulary's alphabet.
  void encode_text(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

  // The same for plain bytes, with a byte-level vocabulary.
  void encode_bytes(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr TokenId kNoToken = static_cast<TokenId>(-1);

  // Appends the ids from the cache, or those that encode() writes to scratch.ids.
  template <typename Encode>
  void encode_cached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out,
                     const Encode& encode) const;
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
  // No token results from two different merges.
  bool merges_are_unique_ = false;
  // No merge crosses the boundary between another character and U+2581, so that the words on both
  // sides can be encoded, and cached, separately.
  bool words_start_at_metaspace_ = false;
};

}  // namespace nvllm::tokenizer
