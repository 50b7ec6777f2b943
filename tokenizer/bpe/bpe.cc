#include "tokenizer/bpe/bpe.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.h"
#include "tokenizer/bpe/vocabulary.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581
// For words of at most this many symbols, scanning an array is faster than a priority queue.
constexpr std::size_t kFew = 32;

bool all_different(const MergeTable& merges, TokenId end_id) {
  std::vector<bool> seen(end_id);
  for (MergeTable::Rank rank = 0; rank < merges.size(); ++rank) {
    const TokenId id = merges.merged(rank);
    if (seen[id]) return false;
    seen[id] = true;
  }
  return true;
}

// Whether, inside tokens that result from merges, U+2581 only follows itself or starts the token.
// Otherwise a merge across another boundary would be found in a token.
bool metaspace_only_leads(const BpeVocabulary& vocabulary) {
  if (vocabulary.ignore_merges || !vocabulary.tokens.find(kMetaspace)) return false;
  for (MergeTable::Rank rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view text = *vocabulary.tokens.text(vocabulary.merges.merged(rank));
    std::size_t at = 0;
    while (text.substr(at).starts_with(kMetaspace)) at += kMetaspace.size();
    if (text.find(kMetaspace, at) != std::string_view::npos) return false;
  }
  return true;
}

}  // namespace

Bpe::Bpe(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  const auto find = [&](std::string_view text) { return tokens().find(text).value_or(kNoToken); };
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, kByteChars[byte]);
    byte_tokens_[byte] = find(text);
    std::array<char, 8> code;
    std::snprintf(code.data(), code.size(), "<0x%02X>", static_cast<unsigned>(byte));
    fallback_tokens_[byte] = find(code.data());
    const char c = static_cast<char>(byte);
    if (byte < ascii_tokens_.size()) ascii_tokens_[byte] = find({&c, 1});
  }
  has_all_bytes_ = std::ranges::find(byte_tokens_, kNoToken) == byte_tokens_.end();
  merges_are_unique_ = all_different(vocabulary_.merges, tokens().end_id());
  const bool all_fall_back =
      vocabulary_.byte_fallback &&
      std::ranges::find(fallback_tokens_, kNoToken) == fallback_tokens_.end();
  // If characters may vanish, their neighbours become adjacent.
  const bool none_vanish = vocabulary_.unk_token || all_fall_back;
  words_start_at_metaspace_ = none_vanish && metaspace_only_leads(vocabulary_);
}

template <typename Encode>
void Bpe::encode_cached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out,
                        const Encode& encode) const {
  const WordCache::Slot slot = scratch.cache.slot_of(word);
  const auto known = scratch.cache.find(slot, word);
  if (!known.empty()) {
    out.insert(out.end(), known.begin(), known.end());
    return;
  }
  scratch.ids.clear();
  encode();
  scratch.cache.store(slot, word, scratch.ids);
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

void Bpe::encode_bytes(std::string_view word, BpeScratch& scratch,
                       std::vector<TokenId>& out) const {
  encode_cached(word, scratch, out, [&] {
    if (vocabulary_.ignore_merges) {
      scratch.chars.clear();
      append_byte_chars(scratch.chars, word);
      if (const auto id = tokens().find(scratch.chars)) return scratch.ids.push_back(*id);
    }
    for (const char byte : word)
      scratch.ids.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
    merge(scratch);
  });
}

void Bpe::encode_text(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (vocabulary_.ignore_merges) {
    if (const auto id = tokens().find(word)) {
      out.push_back(*id);
      return;
    }
  }
  std::size_t begin = 0;
  if (words_start_at_metaspace_) {
    for (std::size_t at = word.find(kMetaspace, 1); at != std::string_view::npos;) {
      if (!word.substr(0, at).ends_with(kMetaspace)) {
        encode_segment(word.substr(begin, at - begin), scratch, out);
        begin = at;
      }
      at = word.find(kMetaspace, at + kMetaspace.size());
    }
  }
  encode_segment(word.substr(begin), scratch, out);
}

void Bpe::encode_segment(std::string_view text, BpeScratch& scratch,
                         std::vector<TokenId>& out) const {
  encode_cached(text, scratch, out, [&] {
    start_with_chars(text, scratch.ids);
    merge(scratch);
  });
}

TokenId Bpe::find_char(std::string_view c) const {
  if (c.size() == 1) return ascii_tokens_[static_cast<unsigned char>(c[0])];
  return tokens().find(c).value_or(kNoToken);
}

TokenId Bpe::unk_id() const {
  const auto id = tokens().find(*vocabulary_.unk_token);
  if (!id) fail("unk_token \"", *vocabulary_.unk_token, "\" is needed and not in the vocabulary");
  return *id;
}

// A character becomes its token, or its bytes' tokens, or unk_token, or (without one) nothing.
void Bpe::start_with_chars(std::string_view text, std::vector<TokenId>& ids) const {
  bool unk_pending = false;  // unknown characters since the last known one; byte tokens do not
                             // reset this
  const auto flush = [&] {
    if (std::exchange(unk_pending, false)) ids.push_back(unk_id());
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view c = text.substr(at, utf8_size(text[at]));
    at += c.size();
    if (const TokenId id = find_char(c); id != kNoToken) {
      flush();
      ids.push_back(id);
      continue;
    }
    const auto fallback = [&](char byte) {
      return fallback_tokens_[static_cast<unsigned char>(byte)];
    };
    if (vocabulary_.byte_fallback &&
        std::ranges::all_of(c, [&](char byte) { return fallback(byte) != kNoToken; })) {
      for (const char byte : c) ids.push_back(fallback(byte));
      continue;
    }
    if (!vocabulary_.unk_token) continue;
    if (!vocabulary_.fuse_unk) flush();
    unk_pending = true;
  }
  flush();
}

void Bpe::merge(BpeScratch& scratch) const {
  if (scratch.ids.size() < 2) return;
  // If several merges yield the same token, merge_many has a peculiarity that merge_few lacks.
  if (scratch.ids.size() <= kFew && merges_are_unique_) {
    merge_few(scratch);
  } else {
    merge_many(scratch);
  }
}

void Bpe::merge_few(BpeScratch& scratch) const {
  const MergeTable& merges = vocabulary_.merges;
  std::array<TokenId, kFew + 1> ids;
  std::array<MergeTable::Rank, kFew + 1> ranks;  // of merging i and i + 1
  std::size_t count = scratch.ids.size();
  std::ranges::copy(scratch.ids, ids.begin());
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = merges.rank(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == MergeTable::kNever) break;
    ids[best] = merges.merged(ranks[best]);
    --count;
    for (std::size_t i = best + 1; i < count; ++i) ids[i] = ids[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = merges.rank(ids[best - 1], ids[best]);
    if (best + 1 < count) ranks[best] = merges.rank(ids[best], ids[best + 1]);
  }
  scratch.ids.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
}

// Uses a linked list of symbols and a queue of (rank, position of the left symbol), lowest first.
// An entry is stale if its symbols have changed; it is still used if the current symbols there
// yield the same token, as in the reference.
void Bpe::merge_many(BpeScratch& scratch) const {
  constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();
  const MergeTable& merges = vocabulary_.merges;
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  if (scratch.ids.size() >= kEnd)
    fail("a word of ", scratch.ids.size(), " symbols; at most ", kEnd - 1);
  const auto count = static_cast<std::uint32_t>(scratch.ids.size());

  const auto entry = [&](std::uint32_t left) {
    const std::uint32_t right = symbols[left].next;
    const MergeTable::Rank rank = merges.rank(symbols[left].id, symbols[right].id);
    return std::pair(rank != MergeTable::kNever, static_cast<std::uint64_t>(rank) << 32 | left);
  };
  symbols.clear();
  queue.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.ids[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1});
  }
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    if (const auto [merging, value] = entry(i); merging) queue.push_back(value);
  }
  const auto push = [&](std::uint32_t left) {
    if (const auto [merging, value] = entry(left); merging) {
      queue.push_back(value);
      std::ranges::push_heap(queue, std::greater{});
    }
  };

  std::ranges::make_heap(queue, std::greater{});
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, std::greater{});
    const auto rank = static_cast<MergeTable::Rank>(queue.back() >> 32);
    const auto left = static_cast<std::uint32_t>(queue.back());
    queue.pop_back();
    BpeScratch::Symbol& symbol = symbols[left];
    if (symbol.id == kNoToken || symbol.next == kEnd) continue;
    BpeScratch::Symbol& right = symbols[symbol.next];
    const MergeTable::Rank rank_now = merges.rank(symbol.id, right.id);
    if (rank_now == MergeTable::kNever || merges.merged(rank_now) != merges.merged(rank)) continue;
    symbol.id = merges.merged(rank);
    symbol.next = right.next;
    right.id = kNoToken;
    if (symbol.next != kEnd) symbols[symbol.next].previous = left;
    if (symbol.previous != kEnd) push(symbol.previous);
    if (symbol.next != kEnd) push(left);
  }

  scratch.ids.clear();
  for (const BpeScratch::Symbol& symbol : symbols) {
    if (symbol.id != kNoToken) scratch.ids.push_back(symbol.id);
  }
}

}  // namespace nvllm::tokenizer
