// POST /v1/responses: the form of its responses, and the conversion of input items.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

using nlohmann::json;

std::string who_and(const std::string& more = "") {
  return R"({"input":"who")" + (more.empty() ? "" : "," + more) + "}";
}

constexpr const char* kTools =
    R"("tools":[{"type":"function","name":"add","parameters":{"type":"object"}}])";

std::string refusal(ApiFixture& fixture, const std::string& body) {
  return fixture.refusal(parse_response, body);
}

// The data of a stream's events; event names must match the data, and numbers must be consecutive.
std::vector<json> events_of(const std::string& stream) {
  std::vector<json> events;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t end = stream.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::size_t data = stream.find("\ndata: ", at);
    events.push_back(parse_json(stream.substr(data + 7, end - data - 7)));
    CHECK(stream.substr(at, data - at) == "event: " + events.back()["type"].get<std::string>());
    CHECK(events.back()["sequence_number"] == events.size() - 1);
    at = end + 2;
  }
  return events;
}

std::string types_of(const std::vector<json>& events) {
  std::string all;
  for (const json& event : events) all += event["type"].get<std::string>() + "\n";
  return all;
}

TEST_CASE("responses: the whole body") {
  ApiFixture fixture;
  CHECK(
      fixture.response(parse_response, who_and(R"("user":"me","metadata":{"a":"b"})"), "it was") ==
      R"({"id":"resp_7","object":"response","created_at":1700000000,"model":"tiny",)"
      R"("status":"completed","error":null,"incomplete_details":null,)"
      R"("output":[{"id":"msg_7_0","status":"completed","type":"message","role":"assistant",)"
      R"("content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"it was"}]}],)"
      R"("background":false,"instructions":null,"max_output_tokens":null,)"
      R"("metadata":{"a":"b"},"parallel_tool_calls":true,"previous_response_id":null,)"
      R"("reasoning":{"effort":null,"summary":null},"service_tier":"default","store":false,)"
      R"("temperature":1,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],)"
      R"("top_logprobs":0,"top_p":1,"truncation":"disabled","user":"me",)"
      R"("usage":{"input_tokens":16,"input_tokens_details":{"cached_tokens":0},)"
      R"("output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":19}})");
}

TEST_CASE("responses: a stream's events") {
  ApiFixture fixture;
  const auto events =
      events_of(fixture.response(parse_response, who_and(R"("stream":true)"), "it was"));
  CHECK(types_of(events) ==
        "response.created\nresponse.in_progress\nresponse.output_item.added\n"
        "response.content_part.added\nresponse.output_text.delta\nresponse.output_text.delta\n"
        "response.output_text.done\nresponse.content_part.done\nresponse.output_item.done\n"
        "response.completed\n");
  CHECK(events[0]["response"]["status"] == "in_progress");
  CHECK(events[0]["response"]["output"].empty());
  CHECK(events[2]["item"]["content"].empty());
  CHECK(events[4]["delta"] == "it");
  CHECK(events[4]["item_id"] == events[2]["item"]["id"]);
  CHECK(events[6]["text"] == "it was");
  CHECK(events[8]["item"]["content"][0]["text"] == "it was");
  CHECK(events[9]["response"] == parse_json(fixture.response(parse_response, who_and(), "it was")));
}

TEST_CASE("responses: reasoning and tool calls are items, whole or streamed") {
  ApiFixture fixture;
  fixture.context().reasoning_parser = "qwen3";
  fixture.context().tool_call_parser = "hermes";
  fixture.context().auto_tool_choice = true;
  const std::string text =
      "<think>it was he</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n"
      "</tool_call>";
  const json body = parse_json(fixture.response(parse_response, who_and(kTools), text));
  REQUIRE(body["output"].size() == 2);
  CHECK(body["status"] == "completed");
  CHECK(body["output"][0]["type"] == "reasoning");
  CHECK(body["output"][0]["content"][0]["text"] == "it was he");
  CHECK(body["output"][1]["type"] == "function_call");
  CHECK(body["output"][1]["name"] == "add");
  CHECK(parse_json(body["output"][1]["arguments"].get<std::string>()) == json{{"a", 1}});
  CHECK(body["usage"]["output_tokens_details"]["reasoning_tokens"] ==
        fixture.ids("it was he").size());

  const auto events = events_of(
      fixture.response(parse_response, who_and(std::string(kTools) + R"(,"stream":true)"), text));
  const std::string types = types_of(events);
  CHECK(types.find("response.reasoning_text.delta\n") != std::string::npos);
  CHECK(types.find("response.function_call_arguments.done\n") != std::string::npos);
  json streamed = events.back()["response"];
  CHECK(streamed["output"][1]["arguments"] == body["output"][1]["arguments"]);

  const json none = parse_json(fixture.response(
      parse_response, who_and(std::string(kTools) + R"(,"tool_choice":"none")"), text));
  REQUIRE(none["output"].size() == 2);
  CHECK(none["output"][1]["type"] == "message");
}

TEST_CASE("responses: an answer that max_output_tokens ends is incomplete") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_response, who_and(R"("max_output_tokens":1)"));
  CHECK(call->requests()[0].sampling.max_tokens == 1);
  std::string out;
  call->begin(out);
  call->apply(0, ApiFixture::update(fixture.ids("it"), runtime::FinishReason::length), out);
  call->finish(out);
  const json body = parse_json(out);
  CHECK(body["status"] == "incomplete");
  CHECK(body["incomplete_details"]["reason"] == "max_output_tokens");
  CHECK(body["output"][0]["status"] == "incomplete");
}

TEST_CASE("responses: a stream that fails says so, and ends") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_response, who_and(R"("stream":true)"));
  std::string out;
  call->begin(out);
  call->fail(500, "gone", out);
  const auto events = events_of(out);
  REQUIRE(events.size() == 4);
  CHECK(events[2]["type"] == "error");
  CHECK(events[2]["message"] == "gone");
  CHECK(events[3]["type"] == "response.failed");
  CHECK(events[3]["response"]["error"]["message"] == "gone");
}

TEST_CASE("responses: instructions and developers are the system's one message") {
  ApiFixture fixture;
  CHECK(
      fixture.prompt_text(
          parse_response,
          R"({"instructions":"be good","input":[{"role":"developer","content":"be brief"},)"
          R"({"type":"message","role":"user","content":[{"type":"input_text","text":"who"}]}]})") ==
      "<|im_start|>system\nbe good\nbe brief<|im_end|>\n<|im_start|>user\nwho<|im_end|>\n"
      "<|im_start|>assistant\n");
}

TEST_CASE("responses: the effort of reasoning reaches the template") {
  ApiFixture fixture("{{ reasoning_effort }}");
  CHECK(fixture.prompt_text(
            parse_response,
            who_and(R"("reasoning":{"effort":"high","summary":"auto","generate_summary":null})")) ==
        "high");
  CHECK(refusal(fixture, who_and(R"("reasoning":{"effort":"huge"})"))
            .starts_with("400 [reasoning] reasoning: effort: "));
  CHECK(refusal(fixture, who_and(R"("reasoning":{"summary":"detailed"})"))
            .find("summary \"detailed\": not supported") != std::string::npos);
}

TEST_CASE("responses: the items of an answer are one message of the assistant's") {
  ApiFixture fixture("{{ messages | tojson }}");
  CHECK(fixture.prompt_text(
            parse_response,
            R"({"input":[{"role":"user","content":"who"},)"
            R"({"type":"reasoning","id":"rs_1","summary":[],"content":[)"
            R"({"type":"reasoning_text","text":"hm"}]},)"
            R"({"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[)"
            R"({"type":"output_text","text":"so","annotations":[]}]},)"
            R"({"type":"function_call","id":"fc_1","call_id":"c1","name":"add",)"
            R"("arguments":"{\"b\":1,\"a\":2}"},)"
            R"({"type":"function_call_output","call_id":"c1","output":"3"}]})") ==
        R"([{"role": "user", "content": "who"}, {"role": "assistant", "content": "so", )"
        R"("reasoning_content": "hm", "tool_calls": [{"id": "c1", "type": "function", "function": )"
        R"({"name": "add", "arguments": {"b": 1, "a": 2}}}], "reasoning": "hm"}, )"
        R"({"role": "tool", "content": "3", "tool_call_id": "c1"}])");
}

TEST_CASE("responses: what would need a store, and what cannot be honoured, is refused") {
  ApiFixture fixture;
  CHECK(refusal(fixture, "{}") == "400 [input] input: missing");
  CHECK(refusal(fixture, who_and(R"("previous_response_id":"resp_1")"))
            .starts_with("400 [previous_response_id] previous_response_id: the server keeps no"));
  CHECK(refusal(fixture, who_and(R"("conversation":"c")")).starts_with("400 [conversation]"));
  CHECK(refusal(fixture, who_and(R"("background":true)")).starts_with("400 [background]"));
  CHECK(refusal(fixture, who_and(R"("max_tokens":5)")).find("pass max_output_tokens") !=
        std::string::npos);
  CHECK(refusal(fixture, who_and(R"("n":2)")).starts_with("400 [n]"));
  CHECK(refusal(fixture, who_and(R"("stream_options":{"include_obfuscation":false})")) ==
        "no error");
  CHECK(refusal(fixture, who_and(R"("stream_options":{"include_obfuscation":true})"))
            .starts_with("400 [stream_options]"));
  CHECK(refusal(fixture, who_and(R"("tools":[{"type":"web_search"}])"))
            .find("has no tools of its own") != std::string::npos);
  CHECK(refusal(fixture, R"({"input":[{"type":"item_reference","id":"x"}]})")
            .starts_with("400 [input] input: 0: item_reference"));
  CHECK(refusal(fixture, R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})")
            .find("only text is supported") != std::string::npos);
  CHECK(refusal(fixture, who_and(R"("store":true,"include":["reasoning.encrypted_content"])")) ==
        "no error");
  CHECK(refusal(fixture, who_and(R"("text":{"format":{"type":"json_object"}})"))
            .find("only plain text is") != std::string::npos);
}

}  // namespace
}  // namespace nvllm::launcher
