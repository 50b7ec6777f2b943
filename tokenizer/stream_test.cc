#include "tokenizer/stream.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tokenizer/family_fixture.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

// One character per token, so that everything spans tokens.
std::unique_ptr<Tokenizer> letters() {
  std::string vocab;
  for (int c = 'a'; c <= 'z'; ++c) {
    vocab += std::string(vocab.empty() ? "" : ",") + "\"" + static_cast<char>(c) +
             "\":" + std::to_string(c - 'a');
  }
  return parse_tokenizer(R"({"model":{"vocab":{)" + vocab + R"(}},"decoder":{"type":"Fuse"}})");
}

struct Streamed {
  std::vector<std::string> pieces;
  std::string text;
  bool stopped;
};

Streamed stream(const Tokenizer& tokenizer, const Ids& ids, StreamOptions options = {}) {
  StreamDetokenizer detokenizer(tokenizer, std::move(options));
  Streamed result;
  for (const TokenId id : ids) result.pieces.push_back(detokenizer.push(id));
  result.pieces.push_back(detokenizer.finish());
  for (const std::string& piece : result.pieces) result.text += piece;
  result.stopped = detokenizer.stopped();
  return result;
}

// A character that is not a token, but consists of several.
std::string char_of_several_tokens(const Tokenizer& tokenizer) {
  for (char32_t c = 0x1F300; c < 0x20000; ++c) {
    std::string text;
    append_utf8(text, c);
    if (tokenizer.encode(text, false).size() > 2) return text;
  }
  return "";
}

TEST_CASE("stream: never half a character") {
  const auto tokenizer = load_family("llama3");
  const std::string c = char_of_several_tokens(*tokenizer);
  REQUIRE(!c.empty());
  const std::string text = c + "the" + c + c;
  const Streamed result = stream(*tokenizer, tokenizer->encode(text, false));
  CHECK(result.text == text);
  CHECK(result.pieces.size() > 10);
  for (const std::string& piece : result.pieces) CHECK(valid_utf8_prefix(piece) == piece.size());
}

TEST_CASE("stream: a character that never ends becomes one U+FFFD, at the end") {
  const auto tokenizer = load_family("llama3");
  Ids ids = tokenizer->encode(char_of_several_tokens(*tokenizer), false);
  ids.pop_back();
  const Streamed result = stream(*tokenizer, ids);
  CHECK(result.text == kReplacementCharacter);
  CHECK(result.pieces.back() == kReplacementCharacter);
}

TEST_CASE("stream: text comes as soon as it is certain") {
  const auto tokenizer = letters();
  const Ids ids = tokenizer->encode("abstopcd", false);
  const Streamed free = stream(*tokenizer, ids);
  CHECK(free.pieces == std::vector<std::string>{"a", "b", "s", "t", "o", "p", "c", "d", ""});
  const Streamed held = stream(*tokenizer, ids, {.stop_strings = {"stock"}});
  CHECK(held.pieces == std::vector<std::string>{"a", "b", "", "", "", "stop", "c", "d", ""});
}

TEST_CASE("stream: a stop string across tokens ends the text and never shows") {
  const auto tokenizer = letters();
  const Streamed result = stream(*tokenizer, tokenizer->encode("abststopcd", false),
                                 {.stop_strings = {"stop", "", "xyz"}});
  CHECK(result.stopped);
  CHECK(result.text == "abst");
}

TEST_CASE("stream: of several stop strings the one that ends first counts, then the longest") {
  const auto tokenizer = letters();
  const auto text = [&](std::vector<std::string> stops) {
    return stream(*tokenizer, tokenizer->encode("abcdef", false),
                  {.stop_strings = std::move(stops)})
        .text;
  };
  CHECK(text({"bcde", "cd"}) == "ab");
  CHECK(text({"cd", "bcd", "d"}) == "a");
  CHECK(text({"defg"}) == "abcdef");
}

TEST_CASE("stream: special tokens are left out unless they are wanted") {
  const auto tokenizer = load_family("llama3");
  const Ids ids = tokenizer->encode("<|begin_of_text|>the<|eot_id|>", false);
  CHECK(stream(*tokenizer, ids).text == "the");
  CHECK(stream(*tokenizer, ids, {.skip_special_tokens = false}).text ==
        "<|begin_of_text|>the<|eot_id|>");
}

TEST_CASE("stream: random ids and stop strings equal a search in the whole text") {
  std::mt19937 random(11);
  for (const char* name :
       {"llama3", "llama2", "mistral", "gemma", "unknown", "fused_unknown", "words"}) {
    const auto tokenizer = load_family(name);
    for (int i = 0; i < 300; ++i) {
      Ids ids(random() % 12);
      for (TokenId& id : ids) id = random() % (tokenizer->end_id() + 2);
      const std::string whole = tokenizer->decode(ids, true);
      std::vector<std::string> stops;
      for (auto count = random() % 3; count > 0 && !whole.empty(); --count) {
        std::string stop = whole.substr(random() % whole.size(), 1 + random() % 4);
        if (valid_utf8_prefix(stop) == stop.size()) stops.push_back(std::move(stop));
      }
      std::size_t end = whole.size(), first_end = whole.size() + 1;
      for (const std::string& stop : stops) {
        const std::size_t begin = whole.find(stop);
        if (begin == std::string::npos) continue;
        const std::size_t stop_end = begin + stop.size();
        if (stop_end < first_end || (stop_end == first_end && begin < end))
          end = begin, first_end = stop_end;
      }
      const Streamed result = stream(*tokenizer, ids, {.stop_strings = stops});
      CAPTURE(name);
      CAPTURE(whole);
      REQUIRE(result.text == whole.substr(0, end));
      REQUIRE(result.stopped == (first_end <= whole.size()));
    }
  }
}

TEST_CASE("decoders: Strip takes from both ends, of tokens or of the whole") {
  const std::string model = R"({"model":{"vocab":{"_a_":0,"__":1}},"decoder":)";
  const auto tokens =
      parse_tokenizer(model + R"({"type":"Strip","content":"_","start":1,"stop":1}})");
  CHECK(tokens->decode({0, 1, 0}, false) == "aa");
  const auto whole = parse_tokenizer(model +
                                     R"({"type":"Sequence","decoders":[{"type":"Fuse"},
          {"type":"Strip","content":"_","start":3,"stop":2}]}})");
  CHECK(whole->decode({1, 1, 0, 1}, false) == "__a_");
  CHECK(stream(*whole, {1, 1, 0, 1}).pieces == std::vector<std::string>{"", "", "__a", "_", ""});
}

TEST_CASE("decoders: a replacement of several characters waits for the fused whole") {
  const auto tokenizer = parse_tokenizer(
      R"({"model":{"vocab":{"x":0,"y":1}},"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},
          {"type":"Replace","pattern":{"String":"xy"},"content":"z"}]}})");
  CHECK(tokenizer->decode({0, 1, 0, 1, 1}, false) == "zzy");
}

TEST_CASE("stream: many tokens take linear time") {
  for (const char* name : {"llama3", "llama2"}) {
    const auto tokenizer = load_family(name);
    const Ids ids(300'000, *tokenizer->token_id("a"));
    CHECK(stream(*tokenizer, ids, {.stop_strings = {std::string(1000, 'a') + "b"}}).text.size() ==
          ids.size());
  }
}

}  // namespace
TEST_CASE("special tokens that are kept are text, others are skipped") {
  const auto tokenizer = parse_tokenizer(
      R"({"model": {"vocab": {"a": 0}}, "decoder": {"type": "Fuse"},
          "added_tokens": [{"id": 1, "content": "<tag>", "special": true},
                           {"id": 2, "content": "</s>", "special": true}]})");
  const Ids ids = {0, 1, 0, 2};
  CHECK(stream(*tokenizer, ids).text == "aa");
  CHECK(stream(*tokenizer, ids, {.kept_special_tokens = {1}}).text == "a<tag>a");
}

}  // namespace nvllm::tokenizer
