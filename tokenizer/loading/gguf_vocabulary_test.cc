// Vocabularies of GGUF files yield the same ids as the tokenizer.json from which they were
// converted.
#include "tokenizer/loading/gguf_vocabulary.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/json_text.h"
#include "testing/error_of.h"
#include "testing/read_file.h"

namespace nvllm::tokenizer {
namespace {

using Json = nlohmann::json;
using testing::read_file;

// The output of a converter for a tokenizer.json.
GgufVocabulary vocabulary_of(const Json& json, const std::string& model, const std::string& pre) {
  GgufVocabulary out;
  out.model = model;
  if (!pre.empty()) out.pre = pre;
  const auto put = [&](std::size_t id, const std::string& text, GgufTokenType type) {
    if (id >= out.tokens.size()) {
      out.tokens.resize(id + 1);
      out.token_types.resize(id + 1, static_cast<std::int64_t>(GgufTokenType::unused));
    }
    out.tokens[id] = text;
    out.token_types[id] = static_cast<std::int64_t>(type);
  };
  for (const auto& [text, id] : json["model"]["vocab"].items()) {
    put(id, text, text.starts_with("<0x") ? GgufTokenType::byte : GgufTokenType::normal);
  }
  for (const Json& token : json["added_tokens"]) {
    const bool special = token["special"];
    put(token["id"], token["content"],
        token["content"] == "<unk>" ? GgufTokenType::unknown
        : special                   ? GgufTokenType::control
        // The converter does not distinguish them from other tokens.
        : model == "gemma4" && token["content"].get<std::string>().starts_with("\n")
            ? GgufTokenType::normal
            : GgufTokenType::user_defined);
  }
  if (model == "gpt2" || model == "gemma4") {
    for (const Json& merge : json["model"]["merges"]) {
      out.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    }
  } else {
    for (std::size_t id = 0; id < out.tokens.size(); ++id) {
      out.scores.push_back(-static_cast<double>(id));
    }
  }
  // Rows of the embedding beyond the vocabulary.
  for (int i = 0; i < 3; ++i) {
    const std::size_t id = out.tokens.size();
    put(id, str("[PAD", id, "]"), GgufTokenType::unused);
    if (model == "llama") out.scores.push_back(-10'000);
  }
  return out;
}

struct Family {
  const char* file;
  const char* model;
  const char* pre;
  std::optional<std::int64_t> bos;
};

void check_family(const Family& family) {
  const std::string path = str("tokenizer/testdata/", family.file);
  GgufVocabulary vocabulary =
      vocabulary_of(parse_json(read_file(path + ".json")), family.model, family.pre);
  vocabulary.bos_id = family.bos;
  if (family.bos) vocabulary.add_bos = true;
  if (family.model != std::string("gpt2")) vocabulary.unk_id = 0;
  const LoadedTokenizer loaded = make_tokenizer(vocabulary);
  std::ifstream lines(path + ".jsonl");
  int count = 0;
  for (std::string text; std::getline(lines, text); ++count) {
    const Json line = parse_json(text);
    CAPTURE(text);
    if (line.contains("text")) {
      const std::string plain = line["text"];
      CHECK(Json(loaded.tokenizer->encode(plain, false)) == line["ids"]);
      CHECK(Json(loaded.tokenizer->encode(plain, true)) == line["ids_special"]);
    }
    CHECK(loaded.tokenizer->decode(line["ids_special"], false) == line["decoded"]);
    CHECK(loaded.tokenizer->decode(line["ids_special"], true) == line["decoded_skip"]);
  }
  CHECK(count >= 80);
}

TEST_CASE("qwen2 gives Qwen's ids") {
  check_family({"qwen", "gpt2", "qwen2", {}});
}
TEST_CASE("smollm gives SmolLM's ids") {
  check_family({"smollm", "gpt2", "smollm", {}});
}
TEST_CASE("llama-bpe gives Llama 3's ids") {
  check_family({"llama3", "gpt2", "llama-bpe", 700});
}
TEST_CASE("gpt-2 gives GPT-2's ids") {
  check_family({"gpt2", "gpt2", "gpt-2", {}});
}
TEST_CASE("deepseek-v3 gives DeepSeek's ids") {
  check_family({"deepseek", "gpt2", "deepseek-v3", 700});
}
TEST_CASE("deepseek-r1-qwen gives Qwen's ids") {
  check_family({"qwen", "gpt2", "deepseek-r1-qwen", {}});
}
TEST_CASE("deepseek-llm gives the ids of DeepSeek's first models") {
  check_family({"deepseek_llm", "gpt2", "deepseek-llm", 700});
}
TEST_CASE("deepseek-coder gives DeepSeek Coder's ids") {
  check_family({"deepseek_coder", "gpt2", "deepseek-coder", 700});
}
TEST_CASE("tekken gives the ids of Mistral's newer models") {
  check_family({"tekken", "gpt2", "tekken", 701});
}
TEST_CASE("gpt-4o gives the ids of gpt-oss") {
  check_family({"o200k", "gpt2", "gpt-4o", {}});
}
TEST_CASE("scores give Llama 2's ids") {
  check_family({"llama2", "llama", "", 1});
}

TEST_CASE("qwen35 cuts words as Qwen3.5's tokenizer.json does, which leaves marks in them") {
  Json json = parse_json(read_file("tokenizer/testdata/qwen.json"));
  const auto of_pre = [&](const char* pre) {
    return make_tokenizer(vocabulary_of(json, "gpt2", pre)).tokenizer;
  };
  const auto qwen2 = of_pre("qwen2"), qwen35 = of_pre("qwen35");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
      R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})re"
      R"re(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
  const auto published = parse_tokenizer(json.dump());
  std::ifstream lines("tokenizer/testdata/qwen.jsonl");
  for (std::string text; std::getline(lines, text);) {
    const Json line = parse_json(text);
    if (!line.contains("text")) continue;
    const std::string plain = line["text"];
    CHECK(qwen35->encode(plain, true) == published->encode(plain, true));
  }
  // "e", a mark that does not compose in NFC, and a hyphen: one word or two.
  for (const char* const word : {"e\u0331-", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"}) {
    CHECK(qwen35->encode(word, true) == published->encode(word, true));
    CHECK(qwen35->decode(qwen35->encode(word, true), false) == word);
  }
  CHECK(qwen2->encode("It's 12 words, isn't it?\n\n  Yes.", true) ==
        qwen35->encode("It's 12 words, isn't it?\n\n  Yes.", true));
}

TEST_CASE("gemma4 gives Gemma's ids, with runs of newlines as they are") {
  check_family({"gemma", "gemma4", "", 1});
}

// A vocabulary of all bytes, in the byte-level alphabet, and "ab".
GgufVocabulary small() {
  const Json json = parse_json(read_file("tokenizer/testdata/gpt2.json"));
  GgufVocabulary out = vocabulary_of(json, "gpt2", "gpt-2");
  return out;
}

TEST_CASE(
    "what a file asks to be put around a text is put there, and by default what its kind does") {
  GgufVocabulary vocabulary = small();
  const auto ends = [&] {
    const auto ids = make_tokenizer(vocabulary).tokenizer->encode("", true);
    return std::vector<std::int64_t>(ids.begin(), ids.end());
  };
  vocabulary.bos_id = 5, vocabulary.eos_id = 6;
  CHECK(ends() == std::vector<std::int64_t>{});
  vocabulary.add_bos = true;
  CHECK(ends() == std::vector<std::int64_t>{5});
  vocabulary.add_eos = true;
  CHECK(ends() == std::vector<std::int64_t>{5, 6});
  vocabulary.add_bos.reset(), vocabulary.add_eos.reset();
  vocabulary.pre = "llama-bpe";
  CHECK(ends() == std::vector<std::int64_t>{5});
  vocabulary.add_bos = false;
  CHECK(ends() == std::vector<std::int64_t>{});
  vocabulary.add_bos = vocabulary.add_eos = true;
  vocabulary.bos_id = vocabulary.eos_id = -1;  // there is none
  CHECK(ends() == std::vector<std::int64_t>{});
}

TEST_CASE("gemma4 begins with BOS, whatever a file says, and has no merges of scores") {
  GgufVocabulary vocabulary =
      vocabulary_of(parse_json(read_file("tokenizer/testdata/gemma.json")), "gemma4", "");
  vocabulary.bos_id = 1;
  for (const std::optional<bool> add_bos : {std::optional<bool>(), std::optional<bool>(false)}) {
    vocabulary.add_bos = add_bos;
    CHECK(make_tokenizer(vocabulary).tokenizer->encode("", true) == std::vector<TokenId>{1});
  }
  vocabulary.merges.clear();
  CHECK(testing::error_of([&] { (void)make_tokenizer(vocabulary); }) ==
        "tokenizer.ggml.merges is missing or empty");
}

TEST_CASE("of tokens with one text, the last is what merges make") {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"a", "b", "ab", "ab", "\u2581"};
  vocabulary.scores = {-1, -2, -3, -4, -5};
  vocabulary.add_space_prefix = false;
  CHECK(make_tokenizer(vocabulary).tokenizer->encode("ab", false) == std::vector<TokenId>{3});
}

TEST_CASE("padding is no token, special tokens have names") {
  GgufVocabulary vocabulary = small();
  vocabulary.eos_id = 700, vocabulary.pad_id = -1;
  const LoadedTokenizer loaded = make_tokenizer(vocabulary);
  CHECK(loaded.config.eos_token == "<|endoftext|>");
  CHECK_FALSE(loaded.config.bos_token.has_value());
  CHECK_FALSE(loaded.config.pad_token.has_value());
  const auto last = static_cast<TokenId>(vocabulary.tokens.size() - 1);
  CHECK(vocabulary.tokens[last].starts_with("[PAD"));
  CHECK_FALSE(loaded.tokenizer->token_text(last).has_value());
}

std::string refusal(const GgufVocabulary& vocabulary) {
  return testing::error_of([&] { (void)make_tokenizer(vocabulary); });
}

TEST_CASE("what is unknown or does not fit is refused by name") {
  const std::string known =
      "; supported are gpt-2, gpt2, smollm, qwen2, deepseek-r1-qwen, qwen35, llama-bpe, llama3, "
      "llama-v3, tekken, gpt-4o, deepseek-v3, deepseek-llm, deepseek-coder";
  const auto with = [](auto&& change) {
    GgufVocabulary vocabulary = small();
    change(vocabulary);
    return refusal(vocabulary);
  };
  CHECK(with([](GgufVocabulary& v) { v.pre = "falcon"; }) ==
        "tokenizer.ggml.pre \"falcon\" is not supported" + known);
  CHECK(with([](GgufVocabulary& v) { v.pre.reset(); }) ==
        "tokenizer.ggml.pre is missing, so how text is cut into words is not known" + known);
  CHECK(with([](GgufVocabulary& v) { v.model = "bert"; }) ==
        "tokenizer.ggml.model \"bert\" is not supported; supported are gpt2, llama, gemma4");
  CHECK(with([](GgufVocabulary& v) { v.merges[1] = "ab"; }) ==
        "merge 1: \"ab\" is not two tokens with a space between them");
  CHECK(with([](GgufVocabulary& v) { v.merges[2] = "a \xE2\x82\xAC"; }) ==
        "merge 2: \"a \xE2\x82\xAC\" is of a token that is not there");
  CHECK(with([](GgufVocabulary& v) { v.token_types.pop_back(); }).find("token_type: 7") !=
        std::string::npos);
  CHECK(with([](GgufVocabulary& v) { v.bos_id = 100'000; }).find("bos_token_id 100000") !=
        std::string::npos);
  CHECK(with([](GgufVocabulary& v) {
          v.model = "llama", v.merges.clear();
        }).find("tokenizer.ggml.scores: 0 of") == 0);
  CHECK(with([](GgufVocabulary& v) { v.tokens[7] = "a\x80"; }) ==
        "tokenizer.ggml.tokens: token 7 is not UTF-8");
  CHECK(with([](GgufVocabulary& v) {
          v.model = "llama", v.merges.clear();
          v.scores.assign(v.tokens.size(), 0);
          v.scores[3] = std::nan("");
        }) == "tokenizer.ggml.scores: that of token 3 is nan");
  CHECK(with([](GgufVocabulary& v) { v.tokens.clear(); }) ==
        "tokenizer.ggml.tokens is missing or empty");
}

}  // namespace
}  // namespace nvllm::tokenizer
