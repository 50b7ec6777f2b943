#include "tokenizer/bpe/bpe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/bpe/vocabulary.h"

namespace nvllm::tokenizer {
namespace {

using Ids = std::vector<TokenId>;
struct Merge {
  std::string left, right;
};

BpeVocabulary make_vocabulary(const std::vector<std::string>& tokens,
                              const std::vector<Merge>& merges) {
  BpeVocabulary vocabulary;
  for (const std::string& token : tokens) {
    vocabulary.tokens.add(token, static_cast<TokenId>(vocabulary.tokens.size()));
  }
  for (const auto& [left, right] : merges) {
    vocabulary.merges.add(*vocabulary.tokens.find(left), *vocabulary.tokens.find(right),
                          *vocabulary.tokens.find(left + right));
  }
  return vocabulary;
}

Ids encode(const Bpe& bpe, std::string_view text) {
  BpeScratch scratch;
  Ids ids;
  bpe.encode_text(text, scratch, ids);
  return ids;
}

// Merges the pair of lowest rank, leftmost first, until none is left.
Ids slow_encode(const BpeVocabulary& vocabulary, std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(*vocabulary.tokens.find({&c, 1}));
  for (;;) {
    std::size_t best = 0;
    auto best_rank = MergeTable::kNever;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto rank = vocabulary.merges.rank(ids[i], ids[i + 1]);
      if (rank < best_rank) best_rank = rank, best = i;
    }
    if (best_rank == MergeTable::kNever) return ids;
    ids[best] = vocabulary.merges.merged(best_rank);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// A vocabulary over a, b, c whose merges join random tokens to new ones.
BpeVocabulary random_vocabulary(std::mt19937& random) {
  std::vector<std::string> tokens = {"a", "b", "c"};
  std::vector<Merge> merges;
  while (tokens.size() < 3 + 40) {
    const std::string left = tokens[random() % tokens.size()],
                      right = tokens[random() % tokens.size()];
    if (std::ranges::find(tokens, left + right) != tokens.end()) continue;
    tokens.push_back(left + right);
    merges.push_back({left, right});
  }
  return make_vocabulary(tokens, merges);
}

TEST_CASE("BPE equals a slow and obvious one, for short words and long ones") {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const BpeVocabulary vocabulary = random_vocabulary(random);
    const Bpe bpe(vocabulary);
    for (const std::size_t length : {1, 2, 5, 20, 31, 32, 33, 34, 100, 300}) {
      std::string text;
      while (text.size() < length) text += static_cast<char>('a' + random() % 3);
      CAPTURE(text);
      CHECK(encode(bpe, text) == slow_encode(vocabulary, text));
    }
  }
}

TEST_CASE("BPE: the word cache changes nothing") {
  std::mt19937 random(4);
  const Bpe bpe(random_vocabulary(random));
  BpeScratch warm;
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (auto size = 1 + random() % 36; size > 0; --size)
      text += static_cast<char>('a' + random() % 3);
    Ids ids;
    bpe.encode_text(text, warm, ids);
    REQUIRE(ids == encode(bpe, text));
  }
}

TEST_CASE("BPE: words cut at U+2581 encode as the whole does") {
  const std::string space = "\u2581";
  const std::vector<std::string> tokens = {space, "a",           "b",         space + "a",
                                           "ab",  space + space, space + "ab"};
  const std::vector<Merge> merges = {{space, "a"}, {"a", "b"}, {space, space}, {space, "ab"}};
  BpeVocabulary vocabulary = make_vocabulary(tokens, merges);
  vocabulary.unk_token = tokens[2];  // characters that vanish also prevent splitting
  const Bpe cut(vocabulary);
  // A token across the boundary prevents splitting, even if no text contains it.
  std::vector<std::string> more = tokens;
  more.insert(more.end(), {"c", "c" + space});
  std::vector<Merge> more_merges = merges;
  more_merges.push_back({"c", space});
  const Bpe whole(make_vocabulary(more, more_merges));
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (auto size = random() % 50; size > 0; --size) text += tokens[random() % 3];
    CAPTURE(text);
    REQUIRE(encode(cut, text) == encode(whole, text));
  }
}

TEST_CASE("BPE: what a vanished character parted merges") {
  const std::string space = "\u2581";
  BpeVocabulary vocabulary =
      make_vocabulary({space, "b", space + space, "<unk>"}, {{space, space}});
  const std::string text = "b\u2581x\u2581";
  CHECK(encode(Bpe(vocabulary), text) == Ids{1, 2});
  vocabulary.byte_fallback = true;  // and no byte has a token
  CHECK(encode(Bpe(vocabulary), text) == Ids{1, 2});
  vocabulary.unk_token = "<unk>";
  CHECK(encode(Bpe(vocabulary), text) == Ids{1, 0, 3, 0});
}

TEST_CASE("BPE: characters without a token") {
  BpeVocabulary vocabulary = make_vocabulary({"a", "<unk>", "<0xC3>", "<0xA9>"}, {});
  CHECK(encode(Bpe(vocabulary), "axxa") == Ids{0, 0});
  vocabulary.unk_token = "<unk>";
  CHECK(encode(Bpe(vocabulary), "axxa") == Ids{0, 1, 1, 0});
  vocabulary.fuse_unk = true;
  CHECK(encode(Bpe(vocabulary), "axxa") == Ids{0, 1, 0});
  vocabulary.byte_fallback = true;
  CHECK(encode(Bpe(vocabulary), "a\u00E9x") == Ids{0, 2, 3, 1});
  vocabulary.unk_token = "<missing>";
  CHECK_THROWS_WITH_AS(encode(Bpe(vocabulary), "x"),
                       "unk_token \"<missing>\" is needed and not in the vocabulary", Error);
}

TEST_CASE("BPE: ignore_merges takes a whole word that is a token") {
  BpeVocabulary vocabulary =
      make_vocabulary({"a", "b", "c", "ab", "bc", "abc"}, {{"b", "c"}, {"a", "b"}});
  CHECK(encode(Bpe(vocabulary), "abc") == Ids{0, 4});
  vocabulary.ignore_merges = true;
  CHECK(encode(Bpe(vocabulary), "abc") == Ids{5});
}

TEST_CASE("BPE: a million equal letters take a moment") {
  std::vector<std::string> tokens = {"a"};
  std::vector<Merge> merges;
  for (int i = 0; i < 5; ++i) {
    merges.push_back({tokens.back(), tokens.back()});
    tokens.push_back(tokens.back() + tokens.back());
  }
  const Bpe bpe(make_vocabulary(tokens, merges));
  CHECK(encode(bpe, std::string(1 << 20, 'a')).size() == 1 << 15);
}

TEST_CASE("the byte-level alphabet is one to one, and other tokens stand for themselves") {
  std::string all, chars, back;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  append_byte_chars(chars, all);
  append_token_bytes(back, chars);
  CHECK(back == all);
  back.clear();
  append_token_bytes(back, "\u0120 \u4E2D");
  CHECK(back == "\u0120 \u4E2D");
}

TEST_CASE("token table: the last of equal texts and of equal ids counts") {
  TokenTable table;
  table.add("x", 3);
  table.add("x", 5);
  table.add("y", 5);
  CHECK(table.find("x") == 5);
  CHECK(table.text(5) == "y");
  CHECK_FALSE(table.text(3).has_value());
  CHECK_FALSE(table.text(99).has_value());
  CHECK_THROWS_AS(table.add("z", TokenTable::kMaxId + 1), Error);
}

}  // namespace
}  // namespace nvllm::tokenizer
