#include "tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

// A tokenizer.json with some members; the model has the tokens a, b, ab.
std::string with(const std::string& members, const std::string& model = "") {
  return R"({"model":{"type":"BPE",)" + model +
         R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})" + members + "}";
}

std::unique_ptr<Tokenizer> load_family(const std::string& name) {
  std::ifstream file("tokenizer/testdata/" + name + ".json");
  REQUIRE(file);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  return parse_tokenizer(json);
}

TEST_CASE("tokenizer.json: what is not supported or broken is refused by name") {
  const std::pair<std::string, const char*> cases[] = {
      {with(R"(,"normalizer":{"type":"Nmt"})"),
       "normalizer \"Nmt\" is not supported; supported are NFC, NFD, NFKC, NFKD, Lowercase, "
       "StripAccents, Prepend, Strip, Replace, Sequence"},
      {with(
           R"(,"pre_tokenizer":{"type":"Sequence",
               "pretokenizers":[{"type":"Digits"},{"type":"Bert"}]})"),
       "pre_tokenizer \"Bert\" is not supported; supported are ByteLevel, Split, Digits, "
       "Punctuation, Whitespace, WhitespaceSplit, Metaspace, Sequence"},
      {with(R"(,"decoder":{"type":"WordPiece"})"),
       "decoder \"WordPiece\" is not supported; supported are ByteLevel, ByteFallback, Fuse, "
       "Strip, Replace, Metaspace, Sequence"},
      {with(R"(,"post_processor":{"type":"RobertaProcessing"})"),
       "post_processor \"RobertaProcessing\" is not supported; supported are TemplateProcessing, "
       "ByteLevel, Sequence"},
      {with(
           R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\p{Han}"},
               "behavior":"Isolated"})"),
       "regular expression \"\\p{Han}\": at byte 7: \\p{Han} is not supported"},
      {with(R"(,"pre_tokenizer":{"type":"Split","pattern":{"String":"x"}})"),
       "\"behavior\" is missing in {\"pattern\":{\"String\":\"x\"},\"type\":\"Split\"}"},
      {with(R"(,"normalizer":{"type":"Prepend","prepend":null})"),
       "normalizer: type must be string, but is null"},
      {R"({"model":{"type":"Unigram","vocab":[]}})",
       "model: type \"Unigram\" is not supported; supported is BPE"},
      {R"({"model":{"vocab":{"a":0},"merges":["a b"]}})",
       "model: merge 0: \"b\" is not in the vocabulary"},
      {R"({"model":{"merges":[["a","b","c"]],"vocab":{"a":0}}})",
       "model: merge 0: a list of 3 tokens, not 2"},
      {R"({"model":{"vocab":{"a":9999999}}})", "model: token id 9999999 is above 4194303"},
      {R"({"version":"1.0"})", "model is missing"},
      {with("", R"("dropout":0.1,)"),
       "model: dropout 0.1 is not supported; encoding would be random"},
      {with("", R"("end_of_word_suffix":"</w>",)"),
       "model: end_of_word_suffix \"</w>\" is not supported"}};
  for (const auto& entry : cases) {
    const auto& json = entry.first;
    CAPTURE(json);
    CHECK_THROWS_WITH_AS(parse_tokenizer(json), entry.second, Error);
  }
}

TEST_CASE("a folder without tokenizer.json is named") {
  CHECK_THROWS_WITH_AS(
      load_tokenizer("/nonexistent"),
      "/nonexistent/tokenizer.json: there is no such file; pass a folder with a tokenizer.json",
      Error);
}

TEST_CASE("tokens and ids can be looked up") {
  const auto tokenizer =
      parse_tokenizer(with(R"(,"added_tokens":[{"id":3,"content":"<x>","special":true}])"));
  CHECK(tokenizer->token_text(2) == "ab");
  CHECK(tokenizer->token_id("<x>") == 3);
  CHECK(tokenizer->is_special(3));
  CHECK_FALSE(tokenizer->is_special(0));
  CHECK_FALSE(tokenizer->token_text(4).has_value());
  CHECK(tokenizer->end_id() == 4);
}

TEST_CASE("added tokens: the longest at a place counts, and ids are given as the reference does") {
  const auto tokenizer = parse_tokenizer(with(
      R"(,"added_tokens":[{"id":9,"content":"<x>","special":true},
                          {"id":7,"content":"<x>y","special":true}])"));
  CHECK(tokenizer->encode("a<x>yb<x>", false) == Ids{0, 4, 1, 3});
}

TEST_CASE("tokens of tokenizer_config.json are added") {
  const TokenizerConfig config = parse_tokenizer_config(
      R"({"bos_token":{"content":"<s>"},
          "added_tokens_decoder":{"10":{"content":"<y>","special":true},"3":{"content":"<x>"}}})");
  CHECK(config.bos_token == "<s>");
  const auto tokenizer = parse_tokenizer(with(""), &config);
  CHECK(tokenizer->token_id("<x>") == 3);
  CHECK(tokenizer->token_id("<y>") == 4);
  CHECK_THROWS_AS(parse_tokenizer_config("[]"), Error);
  CHECK_THROWS_AS(parse_tokenizer_config(R"({"added_tokens_decoder":{"x":{"content":"<y>"}}})"),
                  Error);
}

TEST_CASE("bytes that are not UTF-8 count as U+FFFD") {
  const auto tokenizer = load_family("qwen");
  CHECK(tokenizer->encode("a\xFFz", false) == tokenizer->encode("a\uFFFDz", false));
}

TEST_CASE("random text comes back from byte-level families") {
  std::mt19937 random(9);
  for (const char* name : {"llama3", "gpt2", "smollm", "deepseek", "o200k", "possessive"}) {
    const auto tokenizer = load_family(name);
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (auto size = random() % 40; size > 0; --size) {
        const char32_t c = random() % (random() % 2 == 0 ? 0x80 : 0x110000);
        if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
      }
      CAPTURE(name);
      CAPTURE(text);
      REQUIRE(tokenizer->decode(tokenizer->encode(text, false), false) == text);
    }
  }
}

TEST_CASE("hostile texts take linear time") {
  for (const char* name :
       {"qwen", "llama3", "gpt2", "deepseek", "o200k", "llama2", "gemma", "added"}) {
    const auto tokenizer = load_family(name);
    for (const char* part :
         {"a", "\u0301", " ", "\n", "\u2581", "'", "1", "\xFF", "<", "\u00A0", "<R>"}) {
      std::string text;
      while (text.size() < 200'000) text += part;
      CAPTURE(name);
      CAPTURE(part);
      CHECK(!tokenizer->encode(text, false).empty());
    }
  }
}

TEST_CASE("threads may share a tokenizer") {
  const auto tokenizer = load_family("llama2");
  const std::string text = "the lighthouse keeper's \u4F60\u597D naïve café";
  const Ids expected = tokenizer->encode(text, true);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += tokenizer->encode(text, true) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

}  // namespace
}  // namespace nvllm::tokenizer
