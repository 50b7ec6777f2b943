#include "launcher/generate/request_line.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace nvllm::launcher {
namespace {

using Ids = std::vector<std::int32_t>;

RequestLine parse(const std::string& line, const runtime::SamplingParams& defaults = {}) {
  return parse_request_line(line, defaults);
}

}  // namespace

TEST_CASE("a line is a prompt with the defaults of all") {
  const RequestLine line = parse(R"({"prompt_token_ids": [1, 2, 3]})", {.max_tokens = 7});
  REQUIRE_MESSAGE(line.request.has_value(), line.error);
  CHECK(line.request->prompt == Ids{1, 2, 3});
  CHECK(line.request->sampling.max_tokens == 7);
  CHECK(line.request->sampling.temperature == 1.0);
  CHECK(line.id == "");
}

TEST_CASE("every field of SamplingParams has its name") {
  const RequestLine line = parse(R"({
    "prompt_token_ids": [5], "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
    "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.25,
    "seed": 18446744073709551615,
    "max_tokens": 9, "min_tokens": 3, "ignore_eos": true, "stop_token_ids": [7, 8],
    "logit_bias": {"4": -100, "5": 1.5}, "allowed_token_ids": [1, 2],
    "bad_words_token_ids": [[1], [2, 3]],
    "logprobs": 0, "prompt_logprobs": 2})");
  REQUIRE_MESSAGE(line.request.has_value(), line.error);
  const runtime::SamplingParams& params = line.request->sampling;
  CHECK(params.n == 2);
  CHECK(params.temperature == 0.5);
  CHECK(params.top_p == 0.9);
  CHECK(params.top_k == 40);
  CHECK(params.min_p == 0.1);
  CHECK(params.repetition_penalty == 1.1);
  CHECK(params.presence_penalty == -0.5);
  CHECK(params.frequency_penalty == 0.25);
  CHECK(params.seed == 18446744073709551615U);
  CHECK(params.max_tokens == 9);
  CHECK(params.min_tokens == 3);
  CHECK(params.ignore_eos);
  CHECK(params.stop_token_ids == Ids{7, 8});
  CHECK(params.logit_bias == std::vector<std::pair<std::int32_t, float>>{{4, -100.F}, {5, 1.5F}});
  CHECK(params.allowed_token_ids == Ids{1, 2});
  CHECK(params.bad_words == std::vector<Ids>{{1}, {2, 3}});
  CHECK(params.logprobs == 0);
  CHECK(params.prompt_logprobs == 2);
}

TEST_CASE("null takes a default away where a field may be absent") {
  const RequestLine line = parse(
      R"({"prompt_token_ids": [1], "max_tokens": null, "seed": null, "stop_token_ids": null})",
      {.seed = 3, .max_tokens = 7, .stop_token_ids = {4}});
  REQUIRE_MESSAGE(line.request.has_value(), line.error);
  CHECK_FALSE(line.request->sampling.max_tokens.has_value());
  CHECK_FALSE(line.request->sampling.seed.has_value());
  CHECK(line.request->sampling.stop_token_ids.empty());
}

TEST_CASE("an id is a string or a number, and comes back as it was") {
  CHECK(parse(R"({"id": "a\"b", "prompt_token_ids": [1]})").id == R"("a\"b")");
  CHECK(parse(R"({"id": 12, "prompt_token_ids": [1]})").id == "12");
  CHECK(parse(R"({"id": -1.5, "prompt_token_ids": [1]})").id == "-1.5");
  CHECK(parse(R"({"id": null, "prompt_token_ids": [1]})").id == "");
  CHECK(parse(R"({"id": "kept", "prompt_token_ids": []})").id == "\"kept\"");
}

TEST_CASE("a bad line says what is wrong with it") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "no valid JSON at column 2"},
      {"\xff\xfe", "no valid JSON at column 1"},
      {"{\"prompt\": \"\xff\"}", "no valid JSON at column 13: the text is not UTF-8"},
      {"{\"prompt\": \"UTF-8", "no valid JSON at column 18"},
      {R"({"prompt": "\ud800"})",
       "no valid JSON at column 19: half of a surrogate pair is not UTF-8"},
      {R"({"prompt_token_ids": [1]} x)", "no valid JSON at column 27"},
      {"[1, 2]", "holds array, not an object such as {\"prompt_token_ids\": [1, 2]}"},
      {"7", "holds number, not an object such as {\"prompt_token_ids\": [1, 2]}"},
      {"{}", "no prompt_token_ids"},
      {R"({"prompt_token_ids": []})", "prompt_token_ids: []: an empty prompt"},
      {R"({"prompt_token_ids": 5})", "prompt_token_ids: 5: not a list of token ids"},
      {R"({"prompt_token_ids": null})", "prompt_token_ids: null: not a list of token ids"},
      {R"({"prompt_token_ids": [1, "2"]})", "prompt_token_ids: \"2\": no token id"},
      {R"({"prompt_token_ids": [1.0]})", "prompt_token_ids: 1.0: no token id"},
      {R"({"prompt_token_ids": [-1]})", "prompt_token_ids: -1: no token id; they begin at 0"},
      {R"({"prompt_token_ids": [4294967297]})",
       "prompt_token_ids: 4294967297: out of range; at most 2147483647 is allowed"},
      {R"({"prompt_token_ids": [1], "max_token": 5})",
       "max_token: no such field; did you mean 'max_tokens'?"},
      {R"({"prompt_token_ids": [1], "frobnicate": 5})", "frobnicate: no such field"},
      {R"({"prompt_tokens_ids": [1]})",
       "prompt_tokens_ids: no such field; did you mean 'prompt_token_ids'?"},
      {R"({"prompt": "Hello"})",
       "prompt: needs text, and the model has no tokenizer; pass prompt_token_ids"},
      {R"({"prompt_token_ids": [1], "stop": ["x"]})",
       "stop: needs text, and the model has no tokenizer; pass stop_token_ids"},
      {R"({"prompt_token_ids": [1], "temperature": "hot"})", "temperature: \"hot\": not a number"},
      {R"({"prompt_token_ids": [1], "temperature": null})", "temperature: null; leave it out"},
      {R"({"prompt_token_ids": [1], "n": 1.5})", "n: 1.5: not a whole number"},
      {R"({"prompt_token_ids": [1], "seed": -4})", "seed: -4: not a whole number from 0 on"},
      {R"({"prompt_token_ids": [1], "ignore_eos": 1})", "ignore_eos: 1: neither true nor false"},
      {R"({"prompt_token_ids": [1], "logit_bias": [1]})",
       "logit_bias: [1]: not an object such as {\"7\": -100}"},
      {R"({"prompt_token_ids": [1], "logit_bias": {"x": 1}})", "logit_bias: \"x\": no token id"},
      {R"({"prompt_token_ids": [1], "bad_words_token_ids": [1]})",
       "bad_words_token_ids: 1: not a list of token ids"},
      {R"({"prompt_token_ids": [1], "prompt_token_ids": [2]})",
       "\"prompt_token_ids\": the name \"prompt_token_ids\" is there twice"},
      {R"({"prompt_token_ids": [1], "logit_bias": {"1": 1, "1": 2}})",
       "\"logit_bias\": the name \"1\" is there twice"},
      {R"({"prompt_token_ids": [1], "temperature": 1e400})",
       "\"temperature\": a number that is too large"},
      {R"({"id": [1], "prompt_token_ids": [1]})", "id: [1]: neither a string nor a number"},
  };
  for (const auto& [line, error] : cases) {
    const RequestLine parsed = parse(line);
    CHECK_FALSE(parsed.request.has_value());
    CHECK(parsed.error == error);
  }
}

TEST_CASE("values out of their range are refused with the field's name") {
  for (const char* field :
       {R"("temperature": -1)", R"("top_p": 0)", R"("top_p": 1.5)", R"("min_p": 2)", R"("n": 0)",
        R"("n": 2000000000)", R"("max_tokens": 0)", R"("top_k": -2)", R"("repetition_penalty": 0)",
        R"("logprobs": -2)"}) {
    const RequestLine parsed = parse(std::string(R"({"prompt_token_ids": [1], )") + field + "}");
    CHECK_FALSE(parsed.request.has_value());
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    CHECK(parsed.error.find(name) != std::string::npos);
    CHECK(parsed.error.find('\n') == std::string::npos);
  }
}

TEST_CASE("a value that is shown is short") {
  const RequestLine parsed =
      parse(R"({"prompt_token_ids": ")" + std::string(100000, 'x') + R"("})");
  CHECK(parsed.error.size() < 200);
}

}  // namespace nvllm::launcher
