// Batch lines: parsing requests, and formatting responses.
#include "launcher/generate/batch.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

RequestLine parse_batch(const std::string& line) {
  return parse_request_line(line, {});
}

}  // namespace

TEST_CASE("the body reaches the endpoint as it was written, wherever it stands") {
  const std::string body = R"({"z": [1, {"a": "}\"{"}], "a": 1.50, "b\\": "\\"})";
  for (const std::string& line : {
           R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": )" + body +
               "}",
           R"( { "body" :)" + body + R"( ,"url":"/v1/completions","custom_id":"a" } )",
           R"({"url":"\/v1\/completions","bo\u0064y":)" + body + R"(,"custom_id":"a"})",
       }) {
    const RequestLine parsed = parse_batch(line);
    CAPTURE(line);
    REQUIRE_MESSAGE(parsed.batch_request.has_value(), parsed.error);
    CHECK(parsed.batch_request->body == body);
    CHECK(parsed.batch_request->url == "/v1/completions");
    CHECK(parsed.id == "\"a\"");
  }
}

TEST_CASE("what is wrong around the body is told, with the field that is to blame") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"custom_id": 5, "url": "/v1/completions", "body": {}})",
       "custom_id custom_id: 5: no text"},
      {R"({"url": "/v1/completions", "body": {}})", "custom_id custom_id: missing; pass a text"},
      {R"({"custom_id": "a", "body": {}})", "url url: missing; pass \"/v1/chat/completions\""},
      {R"({"custom_id": "a", "url": "/v1/embeddings", "body": {}})",
       "url url: \"/v1/embeddings\": must be /v1/chat/completions or /v1/completions"},
      {R"({"custom_id": "a", "url": "/v1/completions"})",
       "body body: missing; pass what would be sent to /v1/completions"},
      {R"({"custom_id": "a", "url": "/v1/completions", "body": [1]})",
       "body body: [1]: not an object"},
      {R"({"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}})",
       "method method: \"GET\": must be \"POST\""},
      {R"({"custom_id": "a", "url": "/v1/completions", "body": {}, "priority": 1})",
       "priority \"priority\": no such field; a line has custom_id, method, url and body"},
      {R"({"custom_id": "a", "custom_id": "b"})",
       " \"custom_id\": the name \"custom_id\" is there twice"},
      {R"({"custom_id": "a", )", " no valid JSON at column 20"},
  };
  for (const auto& each : cases) {
    const std::string& line = each.first;
    const std::string& error = each.second;
    const RequestLine parsed = parse_batch(line);
    CAPTURE(line);
    CHECK(parsed.batch);
    CHECK_FALSE(parsed.batch_request.has_value());
    CHECK(parsed.error_param + " " + parsed.error == error);
  }
  CHECK_FALSE(parse_batch("{").batch);
  CHECK_FALSE(parse_batch(R"({"prompt_token_ids": [1]})").batch);
}

TEST_CASE("--resume reads back what a line of the output says") {
  std::string out;
  append_batch_line(out, 12, R"("a\"b")", "c0ffee", 200, R"({"x": 1})");
  append_batch_line(out, 13, "", "", 400, R"({"error": {}})");
  const std::size_t middle = out.find('\n') + 1;
  const nlohmann::json first = parse_json(out.substr(0, middle));
  CHECK(first == parse_json(R"({"id": "batch_req_12", "custom_id": "a\"b", "response":
    {"status_code": 200, "request_id": "req_12_c0ffee", "body": {"x": 1}}, "error": null})"));
  const auto answer = read_batch_answer(first);
  REQUIRE(answer.has_value());
  CHECK(answer->line == 12);
  CHECK(answer->custom_id == R"("a\"b")");
  CHECK(answer->request_hash == "c0ffee");
  CHECK_FALSE(answer->failed);
  const auto failure = read_batch_answer(parse_json(out.substr(middle)));
  REQUIRE(failure.has_value());
  CHECK(failure->line == 13);
  CHECK(failure->custom_id == "");
  CHECK(failure->request_hash == "");
  CHECK(failure->failed);
  CHECK_FALSE(read_batch_answer(parse_json(R"({"line": 1, "index": 0})")).has_value());
}

}  // namespace nvllm::launcher
