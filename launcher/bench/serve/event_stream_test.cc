// Streams of events, split at every position, and what a scan finds in their chunks.
#include "launcher/bench/serve/event_stream.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace nvllm::launcher {
namespace {

using Texts = std::vector<std::string>;

Texts events_of(const std::string& bytes, std::size_t cut) {
  EventReader reader;
  Texts events;
  const auto note = [&](std::string_view data) { events.emplace_back(data); };
  reader.feed(bytes.substr(0, cut), note);
  reader.feed(bytes.substr(cut), note);
  return events;
}

}  // namespace

TEST_CASE("events are the same wherever the bytes are cut") {
  const std::string plain =
      ": comment\n\ndata: {\"a\": 1}\n\ndata:b\n\ndata: c\ndata: d\n\ndata: [DONE]\n\n";
  std::string with_returns;
  for (const char c : plain) with_returns += c == '\n' ? "\r\n" : std::string(1, c);
  for (const std::string& bytes : {plain, with_returns, "event: x\nid: 7\n" + plain}) {
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      CAPTURE(cut);
      CHECK(events_of(bytes, cut) == Texts{"{\"a\": 1}", "b", "c\nd", "[DONE]"});
    }
  }
}

TEST_CASE("an event that has not ended is none") {
  CHECK(events_of("data: a\n\ndata: b\n", 3) == Texts{"a"});
}

TEST_CASE("text is seen in completions, messages, reasoning and tool calls") {
  CHECK(scan_chunk(R"({"choices":[{"text":"a","finish_reason":null}]})").text);
  CHECK(scan_chunk(R"({ "choices" : [ {"delta" : {"content" : "a"} } ] })").text);
  CHECK(scan_chunk(R"({"choices":[{"delta":{"reasoning_content":"a"}}]})").text);
  CHECK(scan_chunk(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})").text);
  CHECK(!scan_chunk(R"({"choices":[{"delta":{"content":"","tool_calls":[]}}]})").text);
  CHECK(!scan_chunk(R"({"choices":[{"text":null}]})").text);
}

TEST_CASE("roles, finish reasons, errors and token ids are seen") {
  const StreamChunk first =
      scan_chunk(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})");
  CHECK((first.choice && first.role && !first.finished && !first.error));
  CHECK(scan_chunk(R"({"choices":[{"text":"","finish_reason":"length"}]})").finished);
  CHECK(!scan_chunk(R"({"choices":[{"text":"","finish_reason":null}]})").finished);
  CHECK(scan_chunk(R"({"error":{"message":"no"}})").error);
  CHECK(!scan_chunk(R"({"error":null})").error);
  CHECK(scan_chunk(R"({"choices":[{"text":"ab","token_ids":[1, 22,3]}]})").token_ids == 3);
  CHECK(scan_chunk(R"({"choices":[{"text":"ab","token_ids":[]}]})").token_ids == 0);
}

TEST_CASE("a usage chunk has no choice") {
  const StreamChunk chunk = scan_chunk(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":12,"total_tokens":19,)"
      R"("prompt_tokens_details":{"cached_tokens":4}}})");
  CHECK(chunk.valid);
  CHECK(!chunk.choice);
  CHECK(chunk.prompt_tokens == 7);
  CHECK(chunk.completion_tokens == 12);
  CHECK(chunk.cached_tokens == 4);
  CHECK(!scan_chunk(R"({"choices":[{"text":"a"}],"usage":null})").completion_tokens);
}

TEST_CASE("keys within text are text") {
  const StreamChunk chunk =
      scan_chunk(R"({"choices":[{"text":"\\\",\"error\":1,\"finish_reason\":\"x\\"}]})");
  CHECK((chunk.valid && chunk.text));
  CHECK((!chunk.error && !chunk.finished));
  CHECK(scan_chunk(R"({"choices":[{"text":"\"","finish_reason":"length"}]})").finished);
  CHECK(scan_chunk(R"({"choices":[{"text":"\\","finish_reason":"length"}]})").finished);
}

TEST_CASE("what is no object is not valid") {
  for (const char* text :
       {"", "[DONE]", "{", "{\"a\": \"}", "null", "{\"choices\":[{\"text\":\"a"}) {
    CAPTURE(text);
    CHECK(!scan_chunk(text).valid);
  }
}

}  // namespace nvllm::launcher
