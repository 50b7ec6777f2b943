// POST /v1/messages: the form of its responses, and the prompts of conversations.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

using nlohmann::json;

std::string who_and(const std::string& more = "") {
  return R"({"max_tokens":50,"messages":[{"role":"user","content":"who"}])" +
         (more.empty() ? "" : "," + more) + "}";
}

constexpr const char* kTools =
    R"("tools":[{"name":"add","description":"Adds.","input_schema":{"type":"object"}}])";

std::string refusal(ApiFixture& fixture, const std::string& body) {
  return fixture.refusal(parse_message, body);
}

TEST_CASE("messages: the whole body") {
  ApiFixture fixture;
  CHECK(fixture.response(parse_message, who_and(), "it was") ==
        R"({"id":"msg_7","type":"message","role":"assistant","model":"tiny",)"
        R"("content":[{"type":"text","text":"it was"}],"stop_reason":"end_turn",)"
        R"("stop_sequence":null,"usage":{"input_tokens":16,"cache_creation_input_tokens":0,)"
        R"("cache_read_input_tokens":0,"output_tokens":3}})");
}

TEST_CASE("messages: a stream's events, byte by byte") {
  ApiFixture fixture;
  CHECK(fixture.response(parse_message, who_and(R"("stream":true)"), "it was") ==
        "event: message_start\n"
        R"(data: {"type":"message_start","message":{"id":"msg_7","type":"message",)"
        R"("role":"assistant","model":"tiny","content":[],"stop_reason":null,)"
        R"("stop_sequence":null,"usage":{"input_tokens":16,"cache_creation_input_tokens":0,)"
        "\"cache_read_input_tokens\":0,\"output_tokens\":0}}}\n\n"
        "event: ping\ndata: {\"type\":\"ping\"}\n\n"
        "event: content_block_start\n"
        R"(data: {"type":"content_block_start","index":0,)"
        "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
        "event: content_block_delta\n"
        R"(data: {"type":"content_block_delta","index":0,)"
        "\"delta\":{\"type\":\"text_delta\",\"text\":\"it\"}}\n\n"
        "event: content_block_delta\n"
        R"(data: {"type":"content_block_delta","index":0,)"
        "\"delta\":{\"type\":\"text_delta\",\"text\":\" was\"}}\n\n"
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
        "event: message_delta\n"
        R"(data: {"type":"message_delta","delta":{"stop_reason":"end_turn",)"
        R"("stop_sequence":null},"usage":{"input_tokens":16,"cache_creation_input_tokens":0,)"
        "\"cache_read_input_tokens\":0,\"output_tokens\":3}}\n\n"
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

TEST_CASE("messages: a stop sequence is named, and is no part of the text") {
  ApiFixture fixture;
  const json body = parse_json(
      fixture.response(parse_message, who_and(R"("stop_sequences":[" was"])"), "it was"));
  CHECK(body["content"][0]["text"] == "it");
  CHECK(body["stop_reason"] == "stop_sequence");
  CHECK(body["stop_sequence"] == " was");
}

TEST_CASE("messages: what came from the prefix cache is counted apart") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_message, who_and());
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update(fixture.ids("it"), runtime::FinishReason::length);
  update.cached_tokens = 10;
  call->apply(0, update, out);
  call->finish(out);
  const json body = parse_json(out);
  CHECK(body["stop_reason"] == "max_tokens");
  CHECK(body["usage"]["input_tokens"] == 6);
  CHECK(body["usage"]["cache_read_input_tokens"] == 10);
}

TEST_CASE("messages: reasoning and tool calls are blocks, whole or streamed") {
  ApiFixture fixture;
  fixture.context().reasoning_parser = "qwen3";
  fixture.context().tool_call_parser = "hermes";
  fixture.context().auto_tool_choice = true;
  const std::string text =
      "<think>it was he</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n"
      "</tool_call>";
  const json body = parse_json(fixture.response(parse_message, who_and(kTools), text));
  REQUIRE(body["content"].size() == 2);  // the space between them is no block
  CHECK(body["content"][0]["type"] == "thinking");
  CHECK(body["content"][0]["thinking"] == "it was he");
  CHECK(body["content"][1]["type"] == "tool_use");
  CHECK(body["content"][1]["name"] == "add");
  CHECK(body["content"][1]["input"] == json{{"a", 1}});
  CHECK(body["stop_reason"] == "tool_use");

  const std::string stream =
      fixture.response(parse_message, who_and(std::string(kTools) + R"(,"stream":true)"), text);
  CHECK(stream.find(R"("delta":{"type":"thinking_delta","thinking":"it")") != std::string::npos);
  CHECK(stream.find(R"("content_block":{"type":"tool_use","id":")") != std::string::npos);
  CHECK(stream.find(R"("delta":{"type":"input_json_delta","partial_json":")") != std::string::npos);
  CHECK(stream.find(R"("stop_reason":"tool_use")") != std::string::npos);
}

TEST_CASE("messages: the conversation is rendered by the model's template") {
  ApiFixture fixture;
  CHECK(fixture.prompt_text(parse_message, who_and(R"("system":"be good")")) ==
        "<|im_start|>system\nbe good<|im_end|>\n<|im_start|>user\nwho<|im_end|>\n"
        "<|im_start|>assistant\n");
  CHECK(fixture.prompt_text(
            parse_message,
            R"({"max_tokens":5,"system":[{"type":"text","text":"be"},{"type":"text","text":"good",)"
            R"("cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":)"
            R"([{"type":"text","text":"who"},{"type":"text","text":"is"}]}]})") ==
        "<|im_start|>system\nbe\ngood<|im_end|>\n<|im_start|>user\nwho\nis<|im_end|>\n"
        "<|im_start|>assistant\n");
}

TEST_CASE("messages: a last message of the assistant's is gone on with") {
  ApiFixture fixture;
  CHECK(fixture.prompt_text(parse_message,
                            R"({"max_tokens":5,"messages":[{"role":"user","content":"who"},)"
                            R"({"role":"assistant","content":"it "}]})") ==
        "<|im_start|>user\nwho<|im_end|>\n<|im_start|>assistant\nit ");
}

TEST_CASE("messages: tools, their calls and their results are as templates know them") {
  ApiFixture fixture("{{ messages | tojson }}|{{ tools | tojson }}");
  CHECK(
      fixture.prompt_text(
          parse_message,
          R"({"max_tokens":5,"tool_choice":{"type":"none"},)" + std::string(kTools) +
              R"(,"messages":[{"role":"assistant","content":[)"
              R"({"type":"thinking","thinking":"hm","signature":""},)"
              R"({"type":"text","text":"so"},)"
              R"({"type":"tool_use","id":"t1","name":"add","input":{"b":1,"a":2}}]},)"
              R"({"role":"user","content":[)"
              R"({"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"3"}]},)"
              R"({"type":"tool_result","tool_use_id":"t2","is_error":true,"content":"bad"},)"
              R"({"type":"text","text":"who"}]}]})") ==
      R"([{"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": )"
      R"([{"id": "t1", "type": "function", "function": {"name": "add", "arguments": )"
      R"({"b": 1, "a": 2}}}], "reasoning": "hm"}, )"
      R"({"role": "tool", "content": "3", "tool_call_id": "t1"}, )"
      R"({"role": "tool", "content": "Error: bad", "tool_call_id": "t2"}, )"
      R"({"role": "user", "content": "who"}]|[{"type": "function", "function": )"
      R"({"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}])");
}

TEST_CASE("messages: thinking is the template's enable_thinking") {
  ApiFixture fixture("{{ enable_thinking is defined }} {{ enable_thinking }}");
  CHECK(fixture.prompt_text(parse_message, who_and()) == "False ");
  CHECK(fixture.prompt_text(parse_message, who_and(R"("thinking":{"type":"disabled"})")) ==
        "True False");
  CHECK(fixture.prompt_text(parse_message,
                            who_and(R"("thinking":{"type":"enabled","budget_tokens":2000})")) ==
        "True True");
}

TEST_CASE("messages: what cannot be honoured is refused by its name") {
  ApiFixture fixture;
  CHECK(refusal(fixture, R"({"messages":[{"role":"user","content":"who"}]})") ==
        "400 [max_tokens] max_tokens: missing");
  CHECK(refusal(fixture, R"({"max_tokens":5})") == "400 [messages] messages: missing");
  CHECK(refusal(fixture, who_and(R"("n":2)")).starts_with("400 [n] n: not in /v1/messages"));
  CHECK(refusal(fixture, who_and(R"("stop":["a"])")).find("pass stop_sequences") !=
        std::string::npos);
  CHECK(refusal(fixture, who_and(R"("mcp_servers":[])")).starts_with("400 [mcp_servers]"));
  CHECK(refusal(fixture, who_and(R"("tool_choice":{"type":"any"})"))
            .starts_with("400 [tool_choice] tool_choice: \"any\": a call cannot be forced"));
  CHECK(refusal(fixture, who_and(kTools)).starts_with("400 [tools] tools: the server was started"));
  CHECK(refusal(fixture, who_and(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"))
            .find("has no tools of its own") != std::string::npos);
  CHECK(refusal(fixture, R"({"max_tokens":5,"messages":[{"role":"user","content":)"
                         R"([{"type":"image","source":{}}]}]})") ==
        "400 [messages] messages: 0: 0: a block of type \"image\": only text and tool_result are "
        "supported");
  CHECK(refusal(fixture, R"({"max_tokens":5,"messages":[{"role":"robot","content":"x"}]})")
            .starts_with("400 [messages] messages: 0: role \"robot\""));
}

TEST_CASE("messages: errors have Anthropic's shape") {
  CHECK(message_error_body(400, "a \"b\"") ==
        R"({"type":"error","error":{"type":"invalid_request_error","message":"a \"b\""}})");
  CHECK(message_error_body(503, "x").find("overloaded_error") != std::string::npos);
  ApiFixture fixture;
  std::string out;
  fixture.call(parse_message, who_and(R"("stream":true)"))->fail(500, "gone", out);
  CHECK(out ==
        "event: error\n"
        R"(data: {"type":"error","error":{"type":"api_error","message":"gone"}})"
        "\n\n");
}

TEST_CASE("messages: tokens are counted without max_tokens") {
  ApiFixture fixture;
  CHECK(respond_count_tokens(fixture.context(),
                             R"({"messages":[{"role":"user","content":"who"}]})") ==
        R"({"input_tokens":16})");
}

}  // namespace
}  // namespace nvllm::launcher
