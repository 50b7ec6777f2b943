// POST /v1/chat/completions: the form of its responses, and the prompts of conversations.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

using nlohmann::json;
using runtime::FinishReason;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{}}}])";

std::string who_and(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"who"}])" + (more.empty() ? "" : "," + more) +
         "}";
}

// A message assembled from the deltas of a stream's choice, as a client does.
json joined(const std::vector<json>& chunks, int index) {
  json message = {{"content", ""}, {"reasoning", ""}, {"reasoning_content", ""}};
  std::map<int, json> calls;
  for (const json& chunk : chunks) {
    for (const json& choice : chunk["choices"]) {
      if (choice["index"] != index) continue;
      for (const auto& [name, value] : choice["delta"].items()) {
        if (value.is_string() && name != "role") {
          message[name] = message[name].get<std::string>() + value.get<std::string>();
        }
      }
      if (!choice["delta"].contains("tool_calls")) continue;
      for (const json& delta : choice["delta"]["tool_calls"]) {
        json& call = calls[delta["index"].get<int>()];
        if (delta.contains("id")) call["id"] = delta["id"], call["type"] = delta["type"];
        const json& function = delta["function"];
        if (function.contains("name")) call["function"]["name"] = function["name"];
        const std::string before = call["function"].value("arguments", "");
        call["function"]["arguments"] = before + function.value("arguments", "");
      }
    }
  }
  for (const auto& [at, call] : calls) message["tool_calls"].push_back(call);
  return message;
}

TEST_CASE("chat: the whole body") {
  ApiFixture fixture;
  CHECK(fixture.response(parse_chat_completion, who_and(""), "it was") ==
        R"({"id":"chatcmpl-7","object":"chat.completion","created":1700000000,"model":"tiny",)"
        R"("choices":[{"index":0,"message":{"role":"assistant","content":"it was",)"
        R"("refusal":null},"logprobs":null,"finish_reason":"stop","stop_reason":null}],)"
        R"("usage":{"prompt_tokens":16,"total_tokens":19,"completion_tokens":3,)"
        R"("prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST_CASE("chat: a stream's events, byte by byte") {
  ApiFixture fixture;
  const std::string head =
      R"(data: {"id":"chatcmpl-x","object":"chat.completion.chunk","created":1700000000,)"
      R"("model":"tiny-alias","choices":[)";
  CHECK(
      fixture.response(parse_chat_completion,
                       who_and(R"("model":"tiny-alias","request_id":"x","stream":true)"),
                       "it was") ==
      head + R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)" +
          "\"finish_reason\":null}]}\n\n" +  //
          head + R"({"index":0,"delta":{"content":"it"},"logprobs":null,"finish_reason":null}]})" +
          "\n\n" + head +
          R"({"index":0,"delta":{"content":" was"},"logprobs":null,"finish_reason":null}]})" +
          "\n\n" + head +
          R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]})" +
          "\n\ndata: [DONE]\n\n");
}

TEST_CASE("chat: usage comes last, with no choices, where it is asked for") {
  ApiFixture fixture;
  const auto chunks = events_of(fixture.response(
      parse_chat_completion, who_and(R"("stream":true,"stream_options":{"include_usage":true})"),
      "it was"));
  for (std::size_t i = 0; i + 1 < chunks.size(); ++i) CHECK(chunks[i]["usage"].is_null());
  CHECK(chunks.back()["choices"].empty());
  CHECK(chunks.back()["usage"]["completion_tokens"] == 3);
  CHECK(chunks.back()["usage"]["prompt_tokens"] == 16);
}

TEST_CASE("chat: the conversation is rendered by the model's template") {
  ApiFixture fixture;
  CHECK(fixture.prompt_text(parse_chat_completion, who_and("")) ==
        "<|im_start|>user\nwho<|im_end|>\n<|im_start|>assistant\n");
  CHECK(fixture.prompt_text(parse_chat_completion, who_and(R"("add_generation_prompt":false)")) ==
        "<|im_start|>user\nwho<|im_end|>\n");
  CHECK(fixture.prompt_text(
            parse_chat_completion,
            R"({"messages":[{"role":"user","content":"who"},{"role":"assistant","content":"it "}],)"
            R"("add_generation_prompt":false,"continue_final_message":true})") ==
        "<|im_start|>user\nwho<|im_end|>\n<|im_start|>assistant\nit ");
  CHECK(fixture.refusal(parse_chat_completion, R"({"messages":[]})")
            .starts_with("400 [messages] messages: an empty list"));
  CHECK(fixture.refusal(parse_chat_completion, "{}") == "400 [messages] messages: missing");
  CHECK(fixture.refusal(parse_chat_completion, R"({"messages":[{"content":"x"}]})")
            .starts_with("400 [messages] messages[0]: a message without a string"));
}

TEST_CASE("chat: content in parts of text") {
  ApiFixture fixture;
  CHECK(
      fixture.prompt_text(parse_chat_completion,
                          R"({"messages":[{"role":"user","content":[{"type":"text","text":"who"},)"
                          R"({"type":"text","text":"is"}]}]})") ==
      "<|im_start|>user\nwho\nis<|im_end|>\n<|im_start|>assistant\n");
  CHECK(fixture.prompt_text(
            parse_chat_completion,
            R"({"messages":[{"role":"assistant","content":[{"type":"text","text":"it "}]}],)"
            R"("add_generation_prompt":false,"continue_final_message":true})") ==
        "<|im_start|>assistant\nit ");
  CHECK(fixture.refusal(parse_chat_completion,
                        R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})") ==
        "400 [messages] messages[0]: content[0]: a part of type image_url: the model reads text "
        "only; pass parts of type text");
}

TEST_CASE("chat: templates see tools, documents and options, whose names keep their order") {
  ApiFixture fixture(
      "{{ tools | tojson }}|{{ documents | tojson }}|{{ reasoning_effort }}|{{ mood }}|{{ zeal }}");
  fixture.context().chat_template_kwargs.set("mood", "calm");
  fixture.context().chat_template_kwargs.set("zeal", "low");
  CHECK(fixture.prompt_text(
            parse_chat_completion,
            who_and(str(kTools, R"(,"tool_choice":"none","documents":[{"z":1,"a":2}],)",
                        R"("reasoning_effort":"high","chat_template_kwargs":{"zeal":"high"})"))) ==
        R"([{"type": "function", "function": {"name": "add", "parameters": {}}}]|)"
        R"([{"z": 1, "a": 2}]|high|calm|high)");
  CHECK(fixture.prompt_text(parse_chat_completion, who_and("")) == "null|null||calm|low");
}

TEST_CASE("chat: an assistant's earlier calls and reasoning are what templates read") {
  ApiFixture fixture(
      "{{ messages[0].reasoning_content }}|{{ messages[0].reasoning }}|"
      "{% for call in messages[0].tool_calls %}{{ call.function.arguments.a }},{% endfor %}|"
      "{{ messages[0].thinking }}");
  const auto prompt = [&](const std::string& message) {
    return fixture.prompt_text(parse_chat_completion, "{\"messages\":[" + message + "]}");
  };
  CHECK(prompt(R"({"role":"assistant","reasoning":"new","tool_calls":[{"id":"1","type":"function",)"
               R"("function":{"name":"add","arguments":"{\"a\": 7}"}}]})") == "new|new|7,|new");
  CHECK(prompt(R"({"role":"assistant","content":"I add.","reasoning":"new","tool_calls":[]})") ==
        "new|new||");
  CHECK(prompt(R"({"role":"assistant","reasoning_content":"old"})") == "old|old||");
  // Arguments that are not JSON are left to the template.
  CHECK(prompt(R"({"role":"assistant","tool_calls":[{"function":{"arguments":"{"}}]})") == "||,|");
}

TEST_CASE("chat: a call without arguments has an empty object of them") {
  ApiFixture fixture(
      "{% for key, value in messages[0].tool_calls[0].function.arguments|items %}{{ key }}"
      "{% endfor %}.");
  for (const char* const arguments : {R"("")", R"(" \n")", "null", "{}", R"("{}")"}) {
    CAPTURE(arguments);
    CHECK(fixture.prompt_text(
              parse_chat_completion,
              str(R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":)",
                  arguments, "}}]}]}")) == ".");
  }
}

TEST_CASE(
    "chat: a message without content, as the server writes that of a call, has an empty one") {
  ApiFixture fixture(
      "{% for message in messages %}{{ message.role + ':' + message.content }}|"
      "{% endfor %}");
  CHECK(fixture.prompt_text(parse_chat_completion,
                            R"({"messages":[{"role":"user","content":"w?"},)"
                            R"({"role":"assistant","content":null,"tool_calls":[]},)"
                            R"({"role":"assistant"},{"role":"tool","content":"sunny"}]})") ==
        "user:w?|assistant:|assistant:|tool:sunny|");
}

TEST_CASE("chat: what a template refuses is the client's error") {
  ApiFixture fixture("{{ raise_exception('no ' ~ messages[0].role) }}");
  CHECK(fixture.refusal(parse_chat_completion, who_and("")) ==
        "400 [messages] messages: the chat template refuses the conversation: no user");
}

TEST_CASE("chat: without a tokenizer there are no chats") {
  ApiFixture fixture;
  fixture.context().text = nullptr;
  CHECK(fixture.refusal(parse_chat_completion, who_and("")).starts_with("400 [messages]"));
}

TEST_CASE("chat: reasoning comes under its new and its old name") {
  ApiFixture fixture;
  fixture.context().reasoning_parser = "qwen3";
  const std::string text = "<think>it was he</think>it is";
  const json body = parse_json(fixture.response(parse_chat_completion, who_and(""), text));
  const json& message = body["choices"][0]["message"];
  CHECK(message["content"] == "it is");
  CHECK(message["reasoning"] == "it was he");
  CHECK(message["reasoning_content"] == "it was he");
  const json streamed = joined(
      events_of(fixture.response(parse_chat_completion, who_and(R"("stream":true)"), text)), 0);
  CHECK(streamed["content"] == "it is");
  CHECK(streamed["reasoning"] == "it was he");
  CHECK(streamed["reasoning_content"] == "it was he");
  const json without = parse_json(
      fixture.response(parse_chat_completion, who_and(R"("include_reasoning":false)"), text));
  CHECK_FALSE(without["choices"][0]["message"].contains("reasoning"));
  CHECK(without["choices"][0]["message"]["content"] == "it is");
}

TEST_CASE("chat: tool calls, whole and as deltas") {
  ApiFixture fixture;
  fixture.context().tool_call_parser = "hermes";
  fixture.context().auto_tool_choice = true;
  const std::string text =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2}}\n</tool_call>";
  const json body = parse_json(fixture.response(parse_chat_completion, who_and(kTools), text));
  const json& choice = body["choices"][0];
  CHECK(choice["finish_reason"] == "tool_calls");
  CHECK(choice["message"]["content"].is_null());
  REQUIRE(choice["message"]["tool_calls"].size() == 2);
  const json& call = choice["message"]["tool_calls"][0];
  CHECK(call["type"] == "function");
  CHECK(call["id"].get<std::string>().starts_with("call_"));
  CHECK(call["function"] == json({{"name", "add"}, {"arguments", R"({"a": 1})"}}));

  const auto chunks = events_of(
      fixture.response(parse_chat_completion, who_and(str(kTools, R"(,"stream":true)")), text));
  CHECK(joined(chunks, 0)["tool_calls"] == choice["message"]["tool_calls"]);
  CHECK(chunks.back()["choices"][0]["finish_reason"] == "tool_calls");
  // The first delta of a call has its id, type and name; later ones only arguments.
  for (const json& chunk : chunks) {
    const json& delta = chunk["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    const json& part = delta["tool_calls"][0];
    CHECK(part.contains("id") == part["function"].contains("name"));
  }

  const json single = parse_json(fixture.response(
      parse_chat_completion, who_and(str(kTools, R"(,"parallel_tool_calls":false)")), text));
  CHECK(single["choices"][0]["message"]["tool_calls"].size() == 1);
  const json none = parse_json(fixture.response(
      parse_chat_completion, who_and(str(kTools, R"(,"tool_choice":"none")")), text));
  CHECK(none["choices"][0]["message"]["content"] == text);
  CHECK(none["choices"][0]["finish_reason"] == "stop");
}

TEST_CASE("chat: tools need a server that was told how its model calls them") {
  ApiFixture fixture;
  fixture.context().tool_call_parser = "hermes";
  CHECK(fixture.refusal(parse_chat_completion, who_and(kTools)).starts_with("400 [tool_choice]"));
  fixture.context().auto_tool_choice = true;
  CHECK(fixture.refusal(parse_chat_completion, who_and(kTools)) == "no error");
  CHECK(fixture.refusal(parse_chat_completion, who_and(R"("tools":[])")) == "no error");
}

TEST_CASE("chat: n choices, each with its index, streamed as whole") {
  ApiFixture fixture;
  const std::string text = "The café: \"it\" <|im_start|> was 🙂";
  const json whole = parse_json(fixture.response(parse_chat_completion, who_and(R"("n":3)"), text));
  REQUIRE(whole["choices"].size() == 3);
  CHECK(whole["usage"]["prompt_tokens"] == 16);
  const auto chunks =
      events_of(fixture.response(parse_chat_completion, who_and(R"("n":3,"stream":true)"), text));
  for (int i = 0; i < 3; ++i) {
    const json& choice = whole["choices"][static_cast<std::size_t>(i)];
    CHECK(choice["index"] == i);
    CHECK(choice["message"]["content"] == "The café: \"it\"  was 🙂");  // no special tokens
    CHECK(joined(chunks, i)["content"] == choice["message"]["content"]);
  }
  const json special = parse_json(fixture.response(
      parse_chat_completion, who_and(R"("skip_special_tokens":false)"), "it <|im_start|>"));
  // Except the token that ended the answer.
  CHECK(special["choices"][0]["message"]["content"] == "it <|im_start|>");
}

TEST_CASE("chat: stop strings end the content; finish_reason and stop_reason say so") {
  ApiFixture fixture;
  const json body = parse_json(
      fixture.response(parse_chat_completion, who_and(R"("stop":["as th", "xyz"])"), "it was the"));
  CHECK(body["choices"][0]["message"]["content"] == "it w");
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(body["choices"][0]["stop_reason"] == "as th");
  const json with = parse_json(fixture.response(
      parse_chat_completion, who_and(R"("stop":"as th","include_stop_str_in_output":true)"),
      "it was the"));
  CHECK(with["choices"][0]["message"]["content"] == "it was th");
  // Not matched within the first min_tokens tokens.
  const json later = parse_json(fixture.response(
      parse_chat_completion, who_and(R"("stop":"it","min_tokens":2)"), "it was it"));
  CHECK(later["choices"][0]["message"]["content"] == "it was ");
}

TEST_CASE("chat: lists of tokens and words are the engine's") {
  ApiFixture fixture;
  const auto call =
      fixture.call(parse_chat_completion,
                   who_and(R"("logit_bias":{"5":1},"stop_token_ids":[7],"allowed_token_ids":[5,7],)"
                           R"("bad_words":["it"])"));
  const runtime::SamplingParams& sampling = call->requests()[0].sampling;
  CHECK(sampling.logit_bias == std::vector<std::pair<std::int32_t, float>>{{5, 1.0F}});
  CHECK(sampling.stop_token_ids == std::vector<std::int32_t>{7});
  CHECK(sampling.allowed_token_ids == std::vector<std::int32_t>{5, 7});
  CHECK_FALSE(sampling.bad_words.empty());
}

TEST_CASE("chat: logprobs, with the bytes of each token") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_chat_completion,
                                 who_and(R"("logprobs":true,"top_logprobs":1,"stream":true)"));
  CHECK(call->requests()[0].sampling.logprobs == 1);
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({160}, FinishReason::none);  // a part of a character
  update.logprobs = {{.chosen = {.token = 160, .logprob = -0.5F}, .top = {}}};
  update.logprobs[0].top = {{.token = 268, .logprob = -0.25F}};
  call->apply(0, update, out);
  const json chunk = events_of(out + "data: [DONE]\n\n").back();
  // It is sent with its token, although the text is not known yet.
  CHECK(json_text(chunk["choices"][0]["logprobs"]) ==
        R"({"content":[{"bytes":[228],"logprob":-0.5,"token":"�","top_logprobs":)"
        R"([{"bytes":[32,119,104],"logprob":-0.25,"token":" wh"}]}]})");
  const auto none = fixture.call(parse_chat_completion, who_and(R"("logprobs":true)"));
  CHECK(none->requests()[0].sampling.logprobs == 0);
  const auto unasked = fixture.call(parse_chat_completion, who_and(R"("logprobs":false)"));
  CHECK_FALSE(unasked->requests()[0].sampling.logprobs);
}

TEST_CASE("chat: token ids and prompt_logprobs as vLLM shows them") {
  ApiFixture fixture;
  const json body = parse_json(fixture.response(
      parse_chat_completion, who_and(R"("return_token_ids":true,"prompt_logprobs":0)"), "it was"));
  CHECK(body["prompt_token_ids"].size() == 16);
  CHECK(body["choices"][0]["token_ids"].size() == 3);
  CHECK(body["prompt_logprobs"] == json::array({nullptr}));
  const auto chunks = events_of(fixture.response(
      parse_chat_completion, who_and(R"("return_token_ids":true,"stream":true)"), "it was"));
  CHECK(chunks[0]["choices"][0]["prompt_token_ids"].size() == 16);
  CHECK(chunks[1]["choices"][0]["token_ids"].size() == 1);
}

TEST_CASE("chat: stream_interval joins tokens, but not the first") {
  ApiFixture fixture;
  const auto chunks = events_of(fixture.response(parse_chat_completion,
                                                 who_and(R"("stream":true,"stream_interval":3)"),
                                                 "it was the night he had"));
  std::vector<std::string> contents;
  for (const json& chunk : chunks) {
    contents.push_back(chunk["choices"][0]["delta"].value("content", "-"));
  }
  CHECK(contents == std::vector<std::string>{"", "it", " was the night", " he had", "-"});
}

}  // namespace
}  // namespace nvllm::launcher
