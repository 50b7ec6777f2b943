#include "tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tokenizer/family_fixture.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

// A tokenizer.json with additional members; the model has the tokens a, b, ab.
std::string with(const std::string& members, const std::string& model = "") {
  return R"({"model":{"type":"BPE",)" + model +
         R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})" + members + "}";
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

TEST_CASE("an added token that goes on behind the end of the text is not found") {
  const auto tokenizer = parse_tokenizer(with(R"(,"added_tokens":[{"id":3,"content":"abba"}])"));
  const std::string_view whole = "abba";
  CHECK(tokenizer->encode(whole, false) == Ids{3});
  // The memory after this text contains the rest of the token.
  CHECK(tokenizer->encode(whole.substr(0, 3), false) == Ids{2, 1});
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

TEST_CASE("Llama's class of tokenizers adds BOS and EOS if tokenizer.json has no template") {
  const auto encode = [](const std::string& config_json, const std::string& post_processor) {
    const TokenizerConfig config = parse_tokenizer_config(
        R"({"bos_token":{"__type":"AddedToken","content":"<s>"},"eos_token":"</s>",)" +
        config_json + "}");
    const auto tokenizer =
        parse_tokenizer(with(R"(,"added_tokens":[{"id":3,"content":"<s>","special":true},)"
                             R"({"id":4,"content":"</s>","special":true}],"post_processor":)" +
                             post_processor),
                        &config);
    CHECK(tokenizer->encode("ab", false) == Ids{2});
    return tokenizer->encode("ab", true);
  };
  const std::string byte_level = R"({"type":"ByteLevel"})", llama = R"("tokenizer_class":"Llama)";
  CHECK(encode(llama + R"(TokenizerFast","add_bos_token":true,"add_eos_token":false)",
               byte_level) == Ids{3, 2});
  CHECK(encode(llama + R"(Tokenizer")", "null") == Ids{3, 2});
  CHECK(encode(llama + R"(Tokenizer","add_bos_token":null)", byte_level) == Ids{3, 2});
  CHECK(encode(llama + R"(TokenizerFast","add_eos_token":true)", byte_level) == Ids{3, 2, 4});
  CHECK(encode(llama + R"(TokenizerFast","add_bos_token":false)", byte_level) == Ids{2});
  CHECK(encode(R"("tokenizer_class":"Qwen2Tokenizer","add_bos_token":true)", byte_level) == Ids{2});
  CHECK(encode(R"("add_bos_token":true)", byte_level) == Ids{2});
  // The template of tokenizer.json is used as it is.
  CHECK(encode(llama + R"(TokenizerFast","add_eos_token":true)",
               R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],)"
               R"("special_tokens":{}})") == Ids{2});
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

// The parts of a text in brackets are marked.
MarkedText marked(std::string_view text) {
  MarkedText out;
  while (!text.empty()) {
    const std::size_t begin = std::min(text.find('['), text.size());
    out.append(text.substr(0, begin));
    text.remove_prefix(begin);
    if (text.empty()) break;
    const std::size_t end = text.find(']');
    out.append(MarkedText::outside(std::string(text.substr(1, end - 1))));
    text.remove_prefix(end + 1);
  }
  return out;
}

TEST_CASE("marked bytes are no part of a special token") {
  const std::string added =
      R"(,"added_tokens":[{"content":"<b>","special":true},{"content":"<b","special":false},
         {"content":"b>a","special":true}])";
  const std::string unknown = R"("unk_token":"a",)";
  const auto tokenizer = parse_tokenizer(with(added, unknown));
  constexpr TokenId kA = 0, kB = 1, kBold = 3, kOpen = 4, kOther = 5;
  CHECK(tokenizer->encode(marked("a<b>b"), false) == Ids{kA, kBold, kB});
  CHECK(tokenizer->encode(marked("[a]<b>[b]"), false) == Ids{kA, kBold, kB});
  // A shorter token that is not special, and the unknown > after it.
  CHECK(tokenizer->encode(marked("[a<b>]"), false) == Ids{kA, kOpen, kA});
  CHECK(tokenizer->encode(marked("<[b]>"), false) == Ids{kOpen, kA});
  CHECK(tokenizer->encode(marked("[<]b>"), false) == Ids{kOpen, kA});
  // A token that starts inside of one that is not recognized.
  CHECK(tokenizer->encode(marked("b>a"), false) == Ids{kOther});
  CHECK(tokenizer->encode(marked("[<b>]<b>"), false) == Ids{kOpen, kA, kBold});
  CHECK(tokenizer->encode(marked("[<]<b>[>\xff]"), false).size() == 4);
}

TEST_CASE("marks hold where special tokens are looked for in normalized text") {
  const std::string added =
      R"(,"added_tokens":[{"content":"<b>","special":true,"normalized":true}])";
  const std::string unknown = R"("unk_token":"a",)";
  constexpr TokenId kBold = 3;
  const auto bold = [&](const std::string& normalizers, std::string_view text) {
    const auto tokenizer = parse_tokenizer(
        with(added + R"(,"normalizer":{"type":"Sequence","normalizers":[)" + normalizers + "]}",
             unknown));
    const MarkedText input = marked(text);
    const Ids all = tokenizer->encode(input.text, false), safe = tokenizer->encode(input, false);
    return std::pair(std::ranges::count(all, kBold), std::ranges::count(safe, kBold));
  };
  const std::pair<std::ptrdiff_t, std::ptrdiff_t> two_one(2, 1), one_none(1, 0), two_none(2, 0);
  CHECK(bold(R"({"type":"Lowercase"})", "<B>[x<B>y]") == two_one);
  // The token is normalized as well: to x<b>.
  CHECK(bold(R"({"type":"Prepend","prepend":"x"},{"type":"Lowercase"})", "[<b>]<b>") == one_none);
  CHECK(bold(R"({"type":"Strip"})", "  [ <b>]<b> ") == two_one);
  CHECK(bold(R"({"type":"NFKC"})",
             "<b>[\xef\xbc\x9c"
             "b>]") == two_one);
  CHECK(bold(R"({"type":"Replace","pattern":{"String":"x"},"content":""})", "[<x]b>") == one_none);
  // The step joins separate parts, so everything is marked.
  CHECK(bold(R"({"type":"Replace","pattern":{"String":"xy"},"content":""})", "<b>[<bx]y>") ==
        two_none);
}

TEST_CASE("what a tokenizer.json may make of a text is bounded") {
  const auto repeated = [](const std::string& step, int times) {
    std::string steps = step;
    for (int i = 1; i < times; ++i) steps += "," + step;
    return steps;
  };
  const std::string many =
      R"({"type":"Replace","pattern":{"String":"a"},"content":")" + std::string(1000, 'a') + "\"}";
  const std::string two = R"({"type":"Replace","pattern":{"Regex":"a"},"content":"a"})";
  const std::string prepend = R"({"type":"Prepend","prepend":"a"})";
  const auto normalizer = [&](const std::string& steps) {
    return with(R"(,"normalizer":{"type":"Sequence","normalizers":[)" + steps + "]}");
  };
  const std::string grown = "times as long; at most 16 times is allowed";
  CHECK_THROWS_WITH_AS(
      parse_tokenizer(normalizer(repeated(many, 4))),
      ("normalizer: its Replace steps make a text up to 1 times 1000 " + grown).c_str(), Error);
  CHECK_THROWS_WITH_AS(
      parse_tokenizer(normalizer(repeated(two, 5))),
      ("normalizer: its Replace steps make a text up to 16 times 2 " + grown).c_str(), Error);
  CHECK_NOTHROW(parse_tokenizer(normalizer(repeated(two, 4))));
  CHECK_THROWS_WITH_AS(parse_tokenizer(normalizer(repeated(prepend, 1000))),
                       "normalizer: it has more than 64 steps", Error);
  CHECK_THROWS_WITH_AS(
      parse_tokenizer(normalizer(prepend + "," + repeated(two, 4) + "," + repeated(prepend, 49))),
      "normalizer: its Prepend steps add 65 bytes to each text; at most 64 are allowed", Error);
  CHECK_THROWS_WITH_AS(
      parse_tokenizer(
          with(R"(,"decoder":{"type":"Sequence","decoders":[)" + repeated(many, 4) + "]}")),
      ("decoder: its Replace steps make a text up to 1 times 1000 " + grown).c_str(), Error);
  CHECK_THROWS_WITH_AS(
      parse_tokenizer(with(R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
                           repeated(R"({"type":"Digits"})", 65) + "]}")),
      "pre_tokenizer: it has more than 64 steps", Error);
  const auto doubling = parse_tokenizer(with(
      R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
      repeated(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", 20) + "]}"));
  CHECK_THROWS_WITH_AS(doubling->encode(std::string(100, '\xff'), false),
                       "the pre-tokenizer writes more than 32 bytes for each byte of text", Error);
}

}  // namespace
}  // namespace nvllm::tokenizer
