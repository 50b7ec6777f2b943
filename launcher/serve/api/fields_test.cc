// Valid bodies, and errors for invalid ones.
#include <doctest/doctest.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/bounded_json.h"
#include "base/json_text.h"
#include "launcher/cli/options.h"
#include "launcher/serve/api/api_fixture.h"
#include "launcher/serve/api/generation_fields.h"
#include "launcher/session/request_fields.h"

namespace nvllm::launcher {
namespace {

using nlohmann::json;

std::string body_refusal(std::string_view body) {
  return api_error_of([&] { (void)parse_body(body); });
}

// A completion's body with one more field.
std::string completion_with(const std::string& field, const std::string& value) {
  return R"({"prompt":"who is it",")" + field + "\":" + value + "}";
}
std::string chat_with(const std::string& field, const std::string& value) {
  return R"({"messages":[{"role":"user","content":"who"}],")" + field + "\":" + value + "}";
}

TEST_CASE("error_body: OpenAI's object, with the status's type") {
  CHECK(error_body(400, "n 0: bad", "n") ==
        R"({"error":{"message":"n 0: bad","type":"BadRequestError","param":"n","code":400}})");
  CHECK(error_body(503, "busy") ==
        R"({"error":{"message":"busy","type":"ServiceUnavailableError","param":null,"code":503}})");
  CHECK(error_body(404, "\"\n\xFF") ==
        R"({"error":{"message":"\"\n�","type":"NotFoundError","param":null,"code":404}})");
}

TEST_CASE("error_body: however long a message is, 300 bytes of it are sent") {
  const json error = parse_json(error_body(400, std::string(1000000, 'x'), "n"));
  CHECK(error["error"]["message"].get<std::string>().size() == 300);
  // Never truncated within a character.
  std::string accents;
  for (int i = 0; i < 1000; ++i) accents += "é";
  CHECK(error_body(400, accents).find("�") == std::string::npos);
}

TEST_CASE("parse_body: the error names the field and what is wrong") {
  CHECK(body_refusal("") == "400 [] the body: no valid JSON at byte 1");
  CHECK(body_refusal("[1]") == "400 [] the body holds [1], not an object");
  CHECK(body_refusal(R"({"n":1e400})") == R"(400 [n] "n": a number that is too large)");
  CHECK(body_refusal(R"({"n":1,"n":2})") == R"(400 [n] "n": the name "n" is there twice)");
  CHECK(body_refusal(R"({"a":{"b":1,"b":2}})") == R"(400 [a] "a": the name "b" is there twice)");
  CHECK(body_refusal("{\"prompt\":\"\xC3\x28\"}") ==
        R"(400 [prompt] "prompt": no valid JSON at byte 13: the text is not UTF-8)");
  CHECK(body_refusal(R"({"n":1} x)") == "400 [n] \"n\": no valid JSON at byte 9");
  CHECK(body_refusal(R"({"n":1,})").starts_with("400 "));
  CHECK(body_refusal(R"({"n":NaN})").starts_with("400 [n]"));
}

TEST_CASE("parse_body: depth, names and values have bounds") {
  CHECK(body_refusal(R"({"prompt":)" + std::string(100000, '[')) ==
        R"(400 [prompt] "prompt": nested more than 64 deep)");
  std::string names;
  for (int i = 0; i < 1025; ++i) names += str(i == 0 ? "" : ",", "\"", i, "\":1");
  CHECK(body_refusal("{\"logit_bias\":{" + names + "}}") ==
        R"(400 [logit_bias] "logit_bias": an object with more than 1024 names)");
  std::string values = "0";
  for (std::size_t i = 0; i < JsonLimits{}.max_values; ++i) values += ",0";
  CHECK(body_refusal("{\"prompt\":[" + values + "]}") ==
        R"(400 [prompt] "prompt": there are more than 2097152 values)");
}

TEST_CASE("parse_body: long names and values are not echoed") {
  const std::string big(1000000, 'x');
  CHECK(body_refusal("{\"" + big + "\":1e999}").size() < 1000100);  // param is cut by error_body()
  CHECK(body_refusal("\"" + big + "\"").size() < 200);
  CHECK(shown(json(std::string(1000, 'x'))).size() < 60);
}

TEST_CASE("fields: every one that is honoured reaches the engine") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_completion, R"({
      "model":"tiny-alias","prompt":[1,2,3],"n":2,"temperature":0.5,"top_p":0.9,"top_k":7,
      "min_p":0.1,"repetition_penalty":1.5,"presence_penalty":-1,"frequency_penalty":2,"seed":-5,
      "max_tokens":20,"min_tokens":3,"ignore_eos":true,"stop_token_ids":[4,5],
      "logit_bias":{"6":-100,"7":1.5},"allowed_token_ids":[8],"bad_words":["who"],"logprobs":4,
      "prompt_logprobs":2,"priority":0,"user":"me","metadata":{"a":"b"},"store":true,
      "service_tier":"auto","response_format":{"type":"text"},
      "spaces_between_special_tokens":true})");
  REQUIRE(call->requests().size() == 1);
  const runtime::Request& request = call->requests()[0];
  const runtime::SamplingParams& params = request.sampling;
  CHECK(request.prompt == std::vector<std::int32_t>{1, 2, 3});
  CHECK(params.n == 2);
  CHECK(params.temperature == 0.5);
  CHECK(params.top_p == 0.9);
  CHECK(params.top_k == 7);
  CHECK(params.min_p == 0.1);
  CHECK(params.repetition_penalty == 1.5);
  CHECK(params.presence_penalty == -1);
  CHECK(params.frequency_penalty == 2);
  CHECK(params.seed == static_cast<std::uint64_t>(-5));
  CHECK(params.max_tokens == 20);
  CHECK(params.min_tokens == 3);
  CHECK(params.ignore_eos);
  CHECK(params.stop_token_ids == std::vector<std::int32_t>{4, 5});
  CHECK(params.logit_bias == std::vector<std::pair<std::int32_t, float>>{{6, -100.0F}, {7, 1.5F}});
  CHECK(params.allowed_token_ids == std::vector<std::int32_t>{8});
  CHECK(params.bad_words.front() == fixture.ids("who"));
  CHECK(params.logprobs == 4);
  CHECK(params.prompt_logprobs == 2);
}

TEST_CASE("fields: what a body leaves out, or has as null, is the server's default") {
  ApiFixture fixture;
  fixture.context().defaults.temperature = 0.25;
  fixture.context().defaults.top_k = 9;
  const auto completion = fixture.call(
      parse_completion, R"({"prompt":"who","temperature":null,"stop":null,"n":null,"top_k":3})");
  CHECK(completion->requests()[0].sampling.temperature == 0.25);
  CHECK(completion->requests()[0].sampling.top_k == 3);
  CHECK(completion->requests()[0].sampling.max_tokens == 16);
  const auto chat = fixture.call(parse_chat_completion, chat_with("max_tokens", "null"));
  CHECK_FALSE(chat->requests()[0].sampling.max_tokens);  // as much as there is room for
  const auto seed = fixture.call(parse_completion, completion_with("seed", "-1"));
  CHECK_FALSE(seed->requests()[0].sampling.seed);
}

TEST_CASE("fields: the longest answer is what the command line says, or else the model's own") {
  const auto max_tokens = [](std::vector<std::string> arguments, bool is_models_own) {
    ApiFixture fixture;
    ModelDefaults model{.sampling = {}, .has_max_tokens = is_models_own};
    model.sampling.max_tokens = 40;
    arguments.insert(arguments.begin(), {"serve", "--model=m"});
    const ApiContext context = api_context(parse_command_line(arguments), nullptr, model, 1000);
    fixture.context().defaults = context.defaults;
    fixture.context().has_max_tokens = context.has_max_tokens;
    const auto chat = fixture.call(parse_chat_completion, chat_with("max_tokens", "null"));
    return chat->requests()[0].sampling.max_tokens;
  };
  CHECK(max_tokens({}, true) == 40);
  CHECK(max_tokens({"--max-tokens=7"}, true) == 7);
  CHECK(max_tokens({"--max-tokens=7"}, false) == 7);
  CHECK_FALSE(max_tokens({}, false));  // 40 is not of the model
  CHECK_FALSE(max_tokens({"--generation-config=none"}, true));
}

TEST_CASE("fields: max_completion_tokens goes before max_tokens") {
  ApiFixture fixture;
  const auto call =
      fixture.call(parse_chat_completion, chat_with("max_completion_tokens", "5,\"max_tokens\":9"));
  CHECK(call->requests()[0].sampling.max_tokens == 5);
}

TEST_CASE("fields: errors about the length of the answer name the request's own field") {
  ApiFixture fixture;
  CHECK(fixture.refusal(parse_chat_completion, chat_with("max_completion_tokens", "0")) ==
        "400 [max_completion_tokens] max_completion_tokens 0: must be at least 1");
  CHECK(fixture.refusal(parse_chat_completion,
                        chat_with("max_completion_tokens", "3,\"min_tokens\":5")) ==
        "400 [min_tokens] min_tokens 5: must be at most max_completion_tokens, which is 3");
  CHECK(fixture.refusal(parse_chat_completion, chat_with("max_tokens", "0"))
            .starts_with("400 [max_tokens] max_tokens 0: "));
  fixture.context().max_model_len = 20;
  CHECK(fixture.refusal(parse_response, R"({"input":"who","max_output_tokens":99})")
            .starts_with("400 [max_output_tokens] max_output_tokens 99 and the prompt's "));
}

TEST_CASE("fields: what is not done is refused by its name") {
  ApiFixture fixture;
  for (const char* const name :
       {"best_of", "use_beam_search", "length_penalty", "structured_outputs", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
        "guided_whitespace_pattern", "cache_salt", "mm_processor_kwargs", "logits_processors",
        "kv_transfer_params", "vllm_xargs", "prompt_embeds"}) {
    CAPTURE(name);
    const std::string refused = str("400 [", name, "] ", name, ": ");
    CHECK(fixture.refusal(parse_completion, completion_with(name, "2")).starts_with(refused));
    CHECK(fixture.refusal(parse_chat_completion, chat_with(name, "2")).starts_with(refused));
    // null has no effect.
    CHECK(fixture.refusal(parse_completion, completion_with(name, "null")) == "no error");
  }
  for (const char* const name : {"suffix", "max_completion_tokens", "messages"}) {
    CAPTURE(name);
    CHECK(fixture.refusal(parse_completion, completion_with(name, "\"x\""))
              .starts_with(str("400 [", name, "] ")));
  }
  for (const char* const name : {"chat_template", "functions", "function_call", "prediction",
                                 "audio", "web_search_options", "verbosity", "echo", "prompt"}) {
    CAPTURE(name);
    CHECK(fixture.refusal(parse_chat_completion, chat_with(name, "\"x\""))
              .starts_with(str("400 [", name, "] ")));
  }
}

TEST_CASE("fields: what is not done may be sent with the value that does not ask for it") {
  ApiFixture fixture;
  struct Neutral {
    const char *name, *value, *asking;
  };
  for (const Neutral& field :
       std::initializer_list<Neutral>{{"use_beam_search", "false", "true"},
                                      {"length_penalty", "1.0", "1.1"},
                                      {"length_penalty", "1", "0"},
                                      {"early_stopping", "false", "true"},
                                      {"structured_outputs", "{}", R"({"json":{}})"},
                                      {"kv_transfer_params", "{}", R"({"a":1})"},
                                      {"logits_processors", "[]", R"(["a"])"}}) {
    CAPTURE(field.name);
    for (const ParseCall parse : {parse_completion, parse_chat_completion}) {
      const auto body = parse == parse_completion ? completion_with : chat_with;
      CHECK(fixture.refusal(parse, body(field.name, field.value)) == "no error");
      CHECK(fixture.refusal(parse, body(field.name, field.asking))
                .starts_with(str("400 [", field.name, "]")));
    }
  }
  CHECK(fixture.refusal(parse_completion, completion_with("suffix", R"("")")) == "no error");
  for (const auto& field : std::initializer_list<std::pair<const char*, const char*>>{
           {"echo", "false"}, {"functions", "[]"}, {"function_call", R"("none")"}}) {
    CAPTURE(field.first);
    CHECK(fixture.refusal(parse_chat_completion, chat_with(field.first, field.second)) ==
          "no error");
  }
}

TEST_CASE("fields: values that are not supported are refused by their field's name") {
  ApiFixture fixture;
  const std::pair<const char*, const char*> completions[] = {
      {"priority", "1"},
      {"response_format", R"({"type":"json_object"})"},
      {"response_format", "7"},
      {"n", "0"},
      {"n", "5000"},
      {"n", "1.5"},
      {"n", "\"2\""},
      {"temperature", "-1"},
      {"temperature", "true"},
      {"top_p", "0"},
      {"top_k", "-2"},
      {"min_p", "2"},
      {"presence_penalty", "3"},
      {"frequency_penalty", "-3"},
      {"repetition_penalty", "0"},
      {"max_tokens", "0"},
      {"min_tokens", "17"},
      {"stop", "7"},
      {"stop", "[7]"},
      {"stop_token_ids", "[-1]"},
      {"logit_bias", R"({"x":1})"},
      {"logit_bias", R"({"1":101})"},
      {"logprobs", "21"},
      {"logprobs", "true"},
      {"prompt_logprobs", "21"},
      {"prompt_logprobs", "-1"},
      {"allowed_token_ids", "[\"a\"]"},
      {"bad_words", "[\"\"]"},
      {"skip_special_tokens", "1"},
      {"truncate_prompt_tokens", "0"},
      {"truncate_prompt_tokens", "1001"},
      {"request_id", "\"a b\""},
      {"stream_interval", "0"},
      {"stream_options", R"({"include_usage":true})"},
      {"seed", "0.5"},
  };
  for (const auto& [name, wrong] : completions) {
    const char *field = name, *value = wrong;
    CAPTURE(field);
    CAPTURE(value);
    const std::string refusal = fixture.refusal(parse_completion, completion_with(field, value));
    CHECK(refusal.starts_with(str("400 [", field, "] ", field)));
  }
  const std::pair<const char*, const char*> chats[] = {
      {"top_logprobs", "2"},
      {"logprobs", "2"},
      {"tools", "7"},
      {"tools", "[{}]"},
      {"tools", R"([{"type":"function","function":{"name":7}}])"},
      {"tool_choice", "\"required\""},
      {"tool_choice", R"({"type":"function","function":{"name":"f"}})"},
      {"tool_choice", "\"auto\""},
      {"reasoning_effort", "\"huge\""},
      {"chat_template_kwargs", "7"},
      {"chat_template_kwargs", R"({"messages":[]})"},
      {"documents", "[7]"},
      {"modalities", R"(["audio"])"},
      {"continue_final_message", "true"},
  };
  for (const auto& [name, wrong] : chats) {
    const char *field = name, *value = wrong;
    CAPTURE(field);
    CAPTURE(value);
    const std::string refusal = fixture.refusal(parse_chat_completion, chat_with(field, value));
    CHECK(refusal.starts_with(str("400 [", field, "] ", field)));
  }
}

TEST_CASE("fields: an unknown one is refused with the nearest name") {
  ApiFixture fixture;
  CHECK(fixture.refusal(parse_completion, completion_with("temprature", "1")) ==
        R"(400 [temprature] "temprature": no such field; did you mean 'temperature'?)");
  CHECK(fixture.refusal(parse_chat_completion, chat_with("tool_choise", "1")) ==
        R"(400 [tool_choise] "tool_choise": no such field; did you mean 'tool_choice'?)");
  CHECK(fixture.refusal(parse_completion, completion_with("zzzzzzzz", "null")) ==
        R"(400 [zzzzzzzz] "zzzzzzzz": no such field)");
  CHECK(fixture.refusal(parse_completion, completion_with(std::string(100000, 'q'), "1")).size() <
        200);
}

TEST_CASE("fields: a model that is not served is 404") {
  ApiFixture fixture;
  CHECK(fixture.refusal(parse_completion, completion_with("model", "\"other\"")) ==
        R"(404 [model] The model "other" does not exist; this server has tiny)");
  CHECK(fixture.refusal(parse_completion, completion_with("model", "\"tiny\"")) == "no error");
}

TEST_CASE("fields: prompt and answer must fit into the context") {
  ApiFixture fixture;
  fixture.context().max_model_len = 20;
  CHECK(fixture.refusal(parse_completion, R"({"prompt":[1,2,3,4,5],"max_tokens":16})") ==
        "400 [max_tokens] max_tokens 16 and the prompt's 5 tokens exceed max_model_len 20; pass "
        "max_tokens of at most 15 or shorten the prompt");
  // A default is reduced to fit.
  const auto call = fixture.call(parse_completion, R"({"prompt":[1,2,3,4,5]})");
  CHECK(call->requests()[0].sampling.max_tokens == 15);
  std::string ids = "1";
  for (int i = 0; i < 19; ++i) ids += ",1";
  CHECK(fixture.refusal(parse_completion, "{\"prompt\":[" + ids + "]}")
            .starts_with("400 [prompt] prompt: 20 tokens leave no room"));
  const auto cut =
      fixture.call(parse_completion,
                   "{\"prompt\":[" + ids + ",2],\"truncate_prompt_tokens\":3,\"max_tokens\":1}");
  CHECK(cut->requests()[0].prompt == std::vector<std::int32_t>{1, 1, 2});
  // -1: to what leaves room for the answer.
  const std::string to_fit = "{\"prompt\":[" + ids + ",2],\"truncate_prompt_tokens\":-1";
  CHECK(
      fixture.call(parse_completion, to_fit + ",\"max_tokens\":8}")->requests()[0].prompt.size() ==
      12);
  CHECK(fixture.call(parse_completion, to_fit + "}")->requests()[0].prompt.size() == 19);
  CHECK(fixture.refusal(parse_completion,
                        "{\"prompt\":[" + ids + ",2],\"truncate_prompt_tokens\":20}") ==
        "400 [prompt] prompt: 20 tokens leave no room for an answer within max_model_len 20; "
        "shorten it, or pass a smaller truncate_prompt_tokens");
  CHECK(fixture.refusal(parse_completion, completion_with("prompt_", "1")).starts_with("400"));
  CHECK(fixture.refusal(parse_completion, "{\"prompt\":\"" + std::string(30000, 'a') + "\"}")
            .starts_with("400 [prompt] prompt: a text of 30000 bytes is longer"));
}

}  // namespace
}  // namespace nvllm::launcher
