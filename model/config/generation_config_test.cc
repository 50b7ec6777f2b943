#include "model/config/generation_config.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"

namespace nvllm::model {
namespace {

using Ids = std::vector<std::int32_t>;

ModelConfig config() {
  ModelConfig config;
  config.vocab_size = 1000;
  config.eos_token_ids = {2, 5000, 2, 7};
  return config;
}

GenerationConfig parse(const std::string& text) {
  return parse_generation_config(text, config(), "DIR/generation_config.json");
}

std::string refusal(const std::string& text) {
  return testing::error_of([&] { parse(text); });
}

TEST_CASE("every field arrives where it belongs") {
  const GenerationConfig generation = parse(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05,
          "repetition_penalty": 1.05, "max_new_tokens": 2048, "eos_token_id": [151645, 643, 9],
          "transformers_version": "4.51.0", "pad_token_id": 151643})");
  CHECK(generation.temperature == 0.6);
  CHECK(generation.top_p == 0.95);
  CHECK(generation.top_k == 20);
  CHECK(generation.min_p == 0.05);
  CHECK(generation.repetition_penalty == 1.05);
  CHECK(generation.max_new_tokens == 2048);
  CHECK(generation.eos_token_ids == Ids{643, 9});
}

TEST_CASE("what is absent or null changes nothing") {
  for (const char* text : {"{}", R"({"temperature": null, "top_k": null, "eos_token_id": null})"}) {
    const GenerationConfig generation = parse(text);
    CHECK_FALSE(generation.temperature);
    CHECK_FALSE(generation.top_p);
    CHECK_FALSE(generation.top_k);
    CHECK_FALSE(generation.min_p);
    CHECK_FALSE(generation.repetition_penalty);
    CHECK_FALSE(generation.max_new_tokens);
  }
}

TEST_CASE("do_sample false is greedy, whatever the temperature") {
  CHECK(parse(R"({"do_sample": false})").temperature == 0);
  CHECK(parse(R"({"do_sample": false, "temperature": 0.6})").temperature == 0);
  CHECK(parse(R"({"do_sample": true, "temperature": 0.6})").temperature == 0.6);
}

TEST_CASE(
    "ends: the file's, one or a list; else config.json's; each once, and none beyond the "
    "vocabulary") {
  CHECK(parse(R"({"eos_token_id": 3})").eos_token_ids == Ids{3});
  CHECK(parse(R"({"eos_token_id": [3, 4, 3]})").eos_token_ids == Ids{3, 4});
  CHECK(parse(R"({"eos_token_id": []})").eos_token_ids == Ids{2, 7});
  CHECK(parse("{}").eos_token_ids == Ids{2, 7});
  CHECK(default_generation_config(config()).eos_token_ids == Ids{2, 7});
}

TEST_CASE("a bad value is refused in one line") {
  const std::string file = "DIR/generation_config.json: ";
  CHECK(refusal(R"({"temperature": -1})")
            .starts_with(file + "temperature -1: must be a number from 0 to "));
  CHECK(refusal(R"({"temperature": "hot"})").starts_with(file + "temperature \"hot\": must be"));
  CHECK(refusal(R"({"top_p": 0})").starts_with(file + "top_p 0: must be a number from "));
  CHECK(refusal(R"({"top_p": 1.5})").starts_with(file + "top_p 1.5: must be a number from "));
  CHECK(
      refusal(R"({"top_k": 1.5})").starts_with(file + "top_k 1.5: must be a whole number from -1"));
  CHECK(refusal(R"({"min_p": 2})") == file + "min_p 2: must be a number from 0 to 1");
  CHECK(
      refusal(R"({"repetition_penalty": 0})").starts_with(file + "repetition_penalty 0: must be"));
  CHECK(refusal(R"({"max_new_tokens": 0})").starts_with(file + "max_new_tokens 0: must be"));
  CHECK(refusal(R"({"do_sample": "yes"})") == file + "do_sample \"yes\": must be true or false");
  CHECK(
      refusal(R"({"eos_token_id": "</s>"})").starts_with(file + "eos_token_id \"</s>\": must be"));
  CHECK(refusal(R"({"eos_token_id": -1})").starts_with(file + "eos_token_id -1: must be"));
  CHECK(refusal("{") == file + "no valid JSON at line 1, column 2");
  CHECK(refusal("[]").starts_with(file + "holds array, not an object"));
}

TEST_CASE("a folder may have the file or not") {
  const TestFolder folder;
  CHECK_FALSE(read_generation_config(folder.path(), config()).temperature);
  folder.write("generation_config.json", R"({"temperature": 0.25})");
  CHECK(read_generation_config(folder.path(), config()).temperature == 0.25);
}

TEST_CASE("the tokenizer's own end token ends an answer, too") {
  const TestFolder folder;
  const auto ends = [&] { return read_generation_config(folder.path(), config()).eos_token_ids; };
  const auto set_eos = [&](const std::string& eos) {
    folder.write("tokenizer_config.json",
                 R"({"added_tokens_decoder": {"8": {"content": "<|im_start|>", "special": true},
                     "9": {"content": "<|im_end|>", "special": true}, "7": {"content": "</s>"},
                     "4000": {"content": "<far>"}, "x": {"content": "<odd>"}}, "eos_token": )" +
                     eos + "}");
  };
  set_eos(R"("<|im_end|>")");
  CHECK(ends() == Ids{2, 7, 9});
  set_eos(R"({"__type": "AddedToken", "content": "<|im_end|>", "lstrip": false})");
  CHECK(ends() == Ids{2, 7, 9});
  folder.write("generation_config.json", R"({"eos_token_id": 3})");
  CHECK(ends() == Ids{3, 9});
  folder.write("generation_config.json", R"({"eos_token_id": [9, 3]})");
  CHECK(ends() == Ids{9, 3});
}

TEST_CASE("a tokenizer that does not say which token ends an answer adds none") {
  const TestFolder folder;
  const auto ends = [&](const std::string& tokenizer_config) {
    folder.write("tokenizer_config.json", tokenizer_config);
    return read_generation_config(folder.path(), config()).eos_token_ids;
  };
  const std::string tokens =
      R"("added_tokens_decoder": {"9": {"content": "<e>"}, "4000": {"content": "<far>"},
                                  "x": {"content": "<odd>"}, "-1": {"content": "<minus>"}})";
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string(R"({"eos_token": "<e>"})"),
        "{" + tokens + "}", R"({"eos_token": null, )" + tokens + "}",
        R"({"eos_token": 9, )" + tokens + "}", R"({"eos_token": "<other>", )" + tokens + "}",
        R"({"eos_token": "<far>", )" + tokens + "}", R"({"eos_token": "<odd>", )" + tokens + "}",
        R"({"eos_token": "<minus>", )" + tokens + "}"}) {
    CAPTURE(text);
    CHECK(ends(text) == Ids{2, 7});
  }
  CHECK(testing::error_of([&] { ends("{"); }) ==
        folder.path("tokenizer_config.json") + ": no valid JSON at line 1, column 2");
}

}  // namespace
}  // namespace nvllm::model
