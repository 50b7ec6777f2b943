// /tokenize, /detokenize, /v1/models and /v1/models/{model}.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

using nlohmann::json;

std::string refusal(const ApiContext& context, Respond respond, std::string_view body) {
  return api_error_of([&] { (void)respond(context, body); });
}

TEST_CASE("tokenize: a text's ids, with the texts of the tokens where they are asked for") {
  ApiFixture fixture;
  const std::vector<std::int32_t> ids = fixture.ids("it was");
  const json body = parse_json(respond_tokenize(fixture.context(), R"({"prompt":"it was"})"));
  CHECK(body == json{{"count", ids.size()},
                     {"max_model_len", 1000},
                     {"tokens", ids},
                     {"token_strs", nullptr}});
  const json with = parse_json(
      respond_tokenize(fixture.context(), R"({"prompt":"it was","return_token_strs":true})"));
  CHECK(with["token_strs"] == json{"it", "Ġwas"});
}

TEST_CASE("tokenize: a conversation is rendered as a chat is") {
  ApiFixture fixture;
  const std::string messages = R"("messages":[{"role":"user","content":"who"}])";
  const json body = parse_json(respond_tokenize(fixture.context(), "{" + messages + "}"));
  CHECK(body["tokens"] == fixture.ids("<|im_start|>user\nwho<|im_end|>\n<|im_start|>assistant\n"));
  const json without = parse_json(
      respond_tokenize(fixture.context(), "{" + messages + R"(,"add_generation_prompt":false})"));
  CHECK(without["tokens"] == fixture.ids("<|im_start|>user\nwho<|im_end|>\n"));
}

TEST_CASE("tokenize: tools need no parser, for nothing is called") {
  ApiFixture fixture("{{ tools | length }}");
  const json body = parse_json(
      respond_tokenize(fixture.context(),
                       R"({"messages":[{"role":"user","content":"who"}],"return_token_strs":true,)"
                       R"("tools":[{"type":"function","function":{"name":"add"}}]})"));
  CHECK(body["token_strs"] == json{"1"});
}

TEST_CASE("tokenize: what is wrong is named") {
  ApiFixture fixture;
  const auto refused = [&](std::string_view body) {
    return refusal(fixture.context(), respond_tokenize, body);
  };
  CHECK(refused("{}") == "400 [prompt] prompt: missing, or no string");
  CHECK(refused(R"({"prompt":"a","messages":[]})") ==
        "400 [prompt] prompt and messages: pass one of them");
  CHECK(refused(R"({"prompt":"a","temperature":1})").starts_with("400 [temperature]"));
  CHECK(refused(R"({"prompt":"a","return_token_str":true})").find("return_token_strs") !=
        std::string::npos);
}

TEST_CASE("detokenize: ids become the text, special tokens included") {
  ApiFixture fixture;
  const std::vector<std::int32_t> ids = fixture.ids("it was<|im_end|>");
  CHECK(respond_detokenize(fixture.context(), json_text(json{{"tokens", ids}})) ==
        R"({"prompt":"it was<|im_end|>"})");
  CHECK(respond_detokenize(fixture.context(), R"({"tokens":[]})") == R"({"prompt":""})");
}

TEST_CASE("detokenize: an id that no token has is named") {
  ApiFixture fixture;
  const auto refused = [&](std::string_view body) {
    return refusal(fixture.context(), respond_detokenize, body);
  };
  CHECK(refused(R"({"tokens":[99999]})")
            .starts_with("400 [tokens] tokens: 99999: no token has this id"));
  CHECK(refused("{}") == "400 [tokens] tokens: missing; pass a list of ids");
}

TEST_CASE("models: each name, where the model came from, and how long it can be") {
  ApiFixture fixture;
  fixture.context().model_root = "/models/tiny";
  fixture.context().created_s = 1700000000;
  CHECK(respond_models(fixture.context(), "") ==
        R"({"object":"list","data":[{"id":"tiny","object":"model","created":1700000000,)"
        R"("owned_by":"nvllm","root":"/models/tiny","parent":null,"max_model_len":1000},)"
        R"({"id":"tiny-alias","object":"model","created":1700000000,)"
        R"("owned_by":"nvllm","root":"/models/tiny","parent":null,"max_model_len":1000}]})");
}

TEST_CASE("model: one of the names; another one is told which there is") {
  ApiFixture fixture;
  fixture.context().model_root = "/models/tiny";
  fixture.context().created_s = 1700000000;
  CHECK(respond_model(fixture.context(), "tiny-alias") ==
        R"({"id":"tiny-alias","object":"model","created":1700000000,)"
        R"("owned_by":"nvllm","root":"/models/tiny","parent":null,"max_model_len":1000})");
  CHECK(refusal(fixture.context(), respond_model, std::string_view("a/b")) ==
        R"(404 [model] The model "a/b" does not exist; this server has tiny)");
}

}  // namespace
}  // namespace nvllm::launcher
