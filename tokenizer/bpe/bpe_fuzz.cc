// BPE with any vocabulary and text against a slow, obviously correct implementation, which works on
// the tokens' texts and merges the first pair of lowest rank until there is none.
//
// Input: flags; number of merges; two bytes per merge, the tokens that it joins; then one byte per
// character.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/bpe/bpe.h"
#include "tokenizer/bpe/vocabulary.h"
#include "tokenizer/unicode/utf8.h"

namespace {

using namespace nvllm::tokenizer;
using Ids = std::vector<TokenId>;

constexpr const char* kUnknown = "<unk>";
// U+2581 is more frequent, because words are split at it.
constexpr std::array<const char*, 8> kChars = {"a",      "b",      "c",      "\u00E9",
                                               "\u2581", "\u2581", "\u4E2D", "\U0001F642"};

enum Flag : std::uint8_t {
  kByteLevel = 1,
  kIgnoreMerges = 2,
  kByteFallback = 4,
  kSomeBytes = 8,  // not all bytes have tokens
  kUnkToken = 16,
  kFuseUnk = 32,
  kFewChars = 64,  // some characters have no token
};

struct Model {
  std::vector<std::string> tokens;  // by id
  std::vector<std::pair<std::string, std::string>> merges;
  std::uint8_t flags = 0;

  bool has(Flag flag) const { return (flags & flag) != 0; }
  bool knows(const std::string& token) const {
    return std::ranges::find(tokens, token) != tokens.end();
  }
};

std::string byte_token(std::uint8_t byte) {
  std::array<char, 8> text;
  std::snprintf(text.data(), text.size(), "<0x%02X>", static_cast<unsigned>(byte));
  return text.data();
}

void add_base_tokens(Model& model) {
  if (model.has(kByteLevel)) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::string text;
      append_utf8(text, kByteChars[byte]);
      model.tokens.push_back(text);
    }
    return;
  }
  for (std::size_t i = 0; i < kChars.size(); ++i) {
    if (model.has(kFewChars) && i % 3 == 0) continue;
    if (!model.knows(kChars[i])) model.tokens.emplace_back(kChars[i]);
  }
  if (model.has(kUnkToken)) model.tokens.emplace_back(kUnknown);
  if (!model.has(kByteFallback)) return;
  for (int byte = 0x80; byte < 0x100; ++byte) {
    if (model.has(kSomeBytes) && byte % 5 == 0) continue;
    model.tokens.push_back(byte_token(static_cast<std::uint8_t>(byte)));
  }
}

Model model_of(std::span<const std::uint8_t> pairs, std::uint8_t flags) {
  Model model{.tokens = {}, .merges = {}, .flags = flags};
  add_base_tokens(model);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const std::string left = model.tokens[pairs[i] % model.tokens.size()];
    const std::string right = model.tokens[pairs[i + 1] % model.tokens.size()];
    // If a token has two merges, Hugging Face's behavior is special; golden tests cover it.
    if (model.knows(left + right)) continue;
    model.merges.emplace_back(left, right);
    model.tokens.push_back(left + right);
  }
  return model;
}

std::vector<std::string> chars_of(const Model& model, std::string_view text) {
  std::vector<std::string> symbols;
  bool open = false;  // unknown characters since the last known one
  const auto close = [&] {
    if (std::exchange(open, false)) symbols.emplace_back(kUnknown);
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::string c(text.substr(at, utf8_size(text[at])));
    at += c.size();
    if (model.knows(c)) {
      close();
      symbols.push_back(c);
      continue;
    }
    std::vector<std::string> bytes;
    for (const char byte : c) {
      const std::string token = byte_token(static_cast<std::uint8_t>(byte));
      if (model.knows(token)) bytes.push_back(token);
    }
    if (model.has(kByteFallback) && bytes.size() == c.size()) {
      symbols.insert(symbols.end(), bytes.begin(), bytes.end());
    } else if (model.has(kUnkToken)) {
      if (!model.has(kFuseUnk)) close();
      open = true;
    }
  }
  close();
  return symbols;
}

Ids slow_encode(const Model& model, const std::string& text) {
  std::vector<std::string> symbols;
  if (model.has(kIgnoreMerges) && model.knows(text)) {
    symbols = {text};
  } else {
    symbols = chars_of(model, text);
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& [left, right] : model.merges) {
        for (std::size_t i = 0; i + 1 < symbols.size() && !merged; ++i) {
          if (symbols[i] != left || symbols[i + 1] != right) continue;
          symbols[i] += right;
          symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
  }
  Ids ids;
  for (const std::string& symbol : symbols) {
    ids.push_back(
        static_cast<TokenId>(std::ranges::find(model.tokens, symbol) - model.tokens.begin()));
  }
  return ids;
}

Bpe fast(const Model& model) {
  BpeVocabulary vocabulary;
  for (std::size_t id = 0; id < model.tokens.size(); ++id) {
    vocabulary.tokens.add(model.tokens[id], static_cast<TokenId>(id));
  }
  for (const auto& [left, right] : model.merges) {
    vocabulary.merges.add(*vocabulary.tokens.find(left), *vocabulary.tokens.find(right),
                          *vocabulary.tokens.find(left + right));
  }
  if (model.has(kUnkToken)) vocabulary.unk_token = kUnknown;
  vocabulary.fuse_unk = model.has(kFuseUnk);
  vocabulary.byte_fallback = model.has(kByteFallback);
  vocabulary.ignore_merges = model.has(kIgnoreMerges);
  return Bpe(std::move(vocabulary));
}

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::span<const std::uint8_t> input(data, size);
  std::uint8_t flags = data[0];
  if ((flags & kByteLevel) != 0) flags &= kByteLevel | kIgnoreMerges;
  const std::size_t pairs = std::min<std::size_t>(size - 2, 2 * (data[1] % 32));
  const Model model = model_of(input.subspan(2, pairs), flags);
  const auto rest = input.subspan(2 + pairs);
  const Bpe bpe = fast(model);
  BpeScratch scratch;
  std::string text, alphabet;
  for (const std::uint8_t byte : rest.first(std::min<std::size_t>(rest.size(), 200))) {
    text += model.has(kByteLevel) ? std::string(1, static_cast<char>(byte))
                                  : kChars[byte % kChars.size()];
  }
  if (model.has(kByteLevel)) append_byte_chars(alphabet, text);
  const Ids expected = slow_encode(model, model.has(kByteLevel) ? alphabet : text);
  for (int repeated = 0; repeated < 2; ++repeated) {  // the second time from the word cache
    Ids ids;
    if (model.has(kByteLevel)) {
      require(bpe.has_all_bytes());
      bpe.encode_bytes(text, scratch, ids);
    } else {
      bpe.encode_text(text, scratch, ids);
    }
    require(ids == expected);
  }
  return 0;
}
