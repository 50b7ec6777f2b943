#include "launcher/generate/answer_book.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using runtime::FinishReason;
using runtime::Update;

Update some(std::uint64_t request, std::vector<std::int32_t> tokens, std::int32_t index = 0) {
  return {.request = request, .index = index, .tokens = std::move(tokens)};
}

Update last(std::uint64_t request, std::vector<std::int32_t> tokens, std::int32_t index = 0,
            FinishReason reason = FinishReason::length) {
  Update update = some(request, std::move(tokens), index);
  update.finish = reason;
  update.kv_mode = "paged";
  update.cached_tokens = 1;
  update.times = {1'000'000'000, 1'500'000'000, 2'000'000'000, 4'000'000'000};
  return update;
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(parse_json(text.substr(begin, end - begin)));
  }
  CHECK(begin == text.size());
  return lines;
}

}  // namespace

TEST_CASE("answers leave in the input's order, whichever order they come in") {
  AnswerBook book;
  for (const std::uint64_t line : {1, 2, 4}) book.expect({.line = line, .prompt = {7}});
  book.take(last(4, {40}));
  book.take(last(2, {20}));
  CHECK(book.take_ready() == "");
  book.take(some(1, {10}));
  CHECK(book.take_ready() == "");
  book.take(last(1, {11}));
  const auto lines = lines_of(book.take_ready());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("line") == 1);
  CHECK(lines[0].at("token_ids") == Json({10, 11}));
  CHECK(lines[1].at("line") == 2);
  CHECK(lines[2].at("line") == 4);
  CHECK(book.empty());
  CHECK(book.held_bytes() == 0);
}

TEST_CASE("answers to one request stay together, by their index") {
  AnswerBook book;
  book.expect({.line = 1, .prompt = {7}, .n = 3});
  for (const int index : {2, 0, 1}) {
    CHECK(book.take_ready() == "");
    book.take(last(1, {index}, index));
  }
  const auto lines = lines_of(book.take_ready());
  REQUIRE(lines.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(lines[static_cast<std::size_t>(i)].at("index") == i);
  CHECK(book.totals().requests == 1);
  CHECK(book.totals().answers == 3);
  CHECK(book.totals().cached_tokens == 3);
}

TEST_CASE("an answer tells all about itself") {
  AnswerBook book;
  book.expect({.line = 3, .id = "\"a\"", .prompt = {1, 2}, .stop_token_ids = {9}});
  book.take(last(3, {5, 9}, 0, FinishReason::stop));
  const Json line = parse_json(book.take_ready());
  CHECK(line == parse_json(R"({"id": "a", "line": 3, "index": 0, "prompt_token_ids": [1, 2],
      "token_ids": [5, 9], "finish_reason": "stop", "stop_reason": 9, "cached_tokens": 1,
      "preemptions": 0, "kv_mode": "paged",
      "timings": {"queue_s": 0.5, "ttft_s": 1, "decode_s": 2, "total_s": 3}})"));
}

TEST_CASE("the model's own end is no stop token that was asked for") {
  AnswerBook book;
  book.expect({.line = 1, .prompt = {1}, .stop_token_ids = {9}});
  book.take(last(1, {2}, 0, FinishReason::stop));
  CHECK(parse_json(book.take_ready()).at("stop_reason").is_null());
}

TEST_CASE("log probabilities come where they were asked for, and read back as the same floats") {
  AnswerBook book;
  book.expect({.line = 1, .prompt = {1, 2}, .logprobs = true, .prompt_logprobs = true});
  Update update = last(1, {5});
  const float odd = -0.1F, huge = -1.2345678e-20F;
  update.logprobs = {{.chosen = {5, odd, 2}, .top = {{4, huge, 1}}}};
  update.prompt_logprobs = {
      {.chosen = {2, -std::numeric_limits<float>::infinity(), 30}, .top = {}}};
  book.take(update);
  const std::string text = book.take_ready();
  CHECK(text.find("\"logprob\": -0.1,") != std::string::npos);
  const Json line = parse_json(text);
  const Json& token = line.at("logprobs").at(0);
  CHECK(token.at("token_id") == 5);
  CHECK(token.at("rank") == 2);
  CHECK(token.at("logprob").get<float>() == odd);
  CHECK(token.at("top").at(0).at("logprob").get<float>() == huge);
  CHECK(line.at("prompt_logprobs").size() == 2);
  CHECK(line.at("prompt_logprobs").at(0).is_null());
  CHECK(line.at("prompt_logprobs").at(1).at("logprob").is_null());
}

TEST_CASE("a bad line, and a request that the engine refuses, are errors in their place") {
  AnswerBook book;
  book.expect({.line = 1, .prompt = {1}});
  book.refuse(2, "7", "no \"prompt\"\xff");
  book.expect({.line = 3, .id = "\"c\"", .prompt = {1}, .n = 2});
  book.take(last(3, {5}, 1));
  book.take({.request = 3, .error = "too long"});
  CHECK(book.take_ready() == "");
  book.take(last(1, {5}));
  const auto lines = lines_of(book.take_ready());
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].at("id") == 7);
  CHECK(lines[1].at("line") == 2);
  CHECK(lines[1].at("error").get<std::string>().starts_with("no \"prompt\""));
  CHECK(lines[2] == Json{{"id", "c"}, {"line", 3}, {"error", "too long"}});
  CHECK(book.totals().failed == 2);
  CHECK(book.totals().first_failure.starts_with("line 2: no "));
}

TEST_CASE("at an early end all answers that are done are given, also behind one that is not") {
  AnswerBook book;
  for (const std::uint64_t line : {1, 2, 3}) book.expect({.line = line, .prompt = {7}, .n = 2});
  book.take(some(1, {1}));
  for (const int index : {0, 1}) book.take(last(2, {2}, index));
  book.take(last(3, {3}, 1));
  const auto lines = lines_of(book.take_all_done());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("line") == 2);
  CHECK(lines[1].at("line") == 2);
  CHECK(lines[2].at("line") == 3);
  CHECK(lines[2].at("index") == 1);
  CHECK(book.empty());
}

TEST_CASE("how much of the input is answered follows what has left the book") {
  AnswerBook book;
  book.expect({.line = 1, .prompt = {7}}, 100);
  book.expect({.line = 2, .prompt = {7}}, 250);
  book.take(last(2, {5}));
  book.take_ready();
  CHECK(book.totals().written_bytes == 0);
  book.take(last(1, {5}));
  book.take_ready();
  CHECK(book.totals().written_bytes == 250);
}

}  // namespace nvllm::launcher
