#include "launcher/generate/answer_queue.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/testing/generate_run.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using runtime::FinishReason;
using runtime::Update;
using testing::json_lines;

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

constexpr std::int64_t kSecond = 1'000'000'000;

AnswerQueue::Totals some_totals() {
  return {.requests = 3,
          .answers = 6,
          .failed = 1,
          .prompt_tokens = 300,
          .cached_tokens = 16,
          .generated_tokens = 192,
          .written_bytes = 500,
          .first_failure = ""};
}

}  // namespace

TEST_CASE("answers leave in the input's order, whichever order they come in") {
  AnswerQueue queue;
  for (const std::uint64_t line : {1, 2, 4}) queue.add_request({.line = line, .prompt = {7}});
  queue.apply(last(4, {40}));
  queue.apply(last(2, {20}));
  CHECK(queue.take_ready() == "");
  queue.apply(some(1, {10}));
  CHECK(queue.take_ready() == "");
  queue.apply(last(1, {11}));
  const auto lines = json_lines(queue.take_ready());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("line") == 1);
  CHECK(lines[0].at("token_ids") == Json({10, 11}));
  CHECK(lines[1].at("line") == 2);
  CHECK(lines[2].at("line") == 4);
  CHECK(queue.empty());
  CHECK(queue.held_bytes() == 0);
}

TEST_CASE("answers to one request stay together, by their index") {
  AnswerQueue queue;
  queue.add_request({.line = 1, .prompt = {7}, .n = 3});
  for (const int index : {2, 0, 1}) {
    CHECK(queue.take_ready() == "");
    queue.apply(last(1, {index}, index));
  }
  const auto lines = json_lines(queue.take_ready());
  REQUIRE(lines.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(lines[static_cast<std::size_t>(i)].at("index") == i);
  CHECK(queue.totals().requests == 1);
  CHECK(queue.totals().answers == 3);
  CHECK(queue.totals().cached_tokens == 3);
}

TEST_CASE("an answer tells all about itself") {
  AnswerQueue queue;
  queue.add_request(
      {.line = 3, .id = "\"a\"", .hash = "c0ffee", .prompt = {1, 2}, .stop_token_ids = {9}});
  queue.apply(last(3, {5, 9}, 0, FinishReason::stop));
  const Json line = parse_json(queue.take_ready());
  CHECK(line == parse_json(R"({"id": "a", "line": 3, "index": 0, "prompt_token_ids": [1, 2],
      "token_ids": [5, 9], "finish_reason": "stop", "stop_reason": 9, "cached_tokens": 1,
      "preemptions": 0, "kv_mode": "paged",
      "timings": {"queue_s": 0.5, "ttft_s": 1, "decode_s": 2, "total_s": 3},
      "request_hash": "c0ffee"})"));
}

TEST_CASE("the model's own end is no stop token that was asked for") {
  AnswerQueue queue;
  queue.add_request({.line = 1, .prompt = {1}, .stop_token_ids = {9}});
  queue.apply(last(1, {2}, 0, FinishReason::stop));
  CHECK(parse_json(queue.take_ready()).at("stop_reason").is_null());
}

TEST_CASE("log probabilities come where they were asked for, and read back as the same floats") {
  AnswerQueue queue;
  queue.add_request({.line = 1, .prompt = {1, 2}, .logprobs = true, .prompt_logprobs = true});
  Update update = last(1, {5});
  const float odd = -0.1F, huge = -1.2345678e-20F;
  update.logprobs = {{.chosen = {5, odd, 2}, .top = {{4, huge, 1}}}};
  update.prompt_logprobs = {
      {.chosen = {2, -std::numeric_limits<float>::infinity(), 30}, .top = {}}};
  queue.apply(update);
  const std::string text = queue.take_ready();
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
  AnswerQueue queue;
  queue.add_request({.line = 1, .prompt = {1}});
  queue.add_error({.line = 2, .id = "7"}, "no \"prompt\"\xff");
  queue.add_request({.line = 3, .id = "\"c\"", .prompt = {1}, .n = 2});
  queue.apply(last(3, {5}, 1));
  queue.apply({.request = 3, .error = "too long"});
  CHECK(queue.take_ready() == "");
  queue.apply(last(1, {5}));
  const auto lines = json_lines(queue.take_ready());
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].at("id") == 7);
  CHECK(lines[1].at("line") == 2);
  CHECK(lines[1].at("error").get<std::string>().starts_with("no \"prompt\""));
  CHECK(lines[2] == Json{{"id", "c"}, {"line", 3}, {"error", "too long"}});
  CHECK(queue.totals().failed == 2);
  CHECK(queue.totals().first_failure.starts_with("line 2: no "));
}

TEST_CASE("at an early end all answers that are done are given, also behind one that is not") {
  AnswerQueue queue;
  for (const std::uint64_t line : {1, 2, 3})
    queue.add_request({.line = line, .prompt = {7}, .n = 2});
  queue.apply(some(1, {1}));
  for (const int index : {0, 1}) queue.apply(last(2, {2}, index));
  queue.apply(last(3, {3}, 1));
  const auto lines = json_lines(queue.take_all_done());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("line") == 2);
  CHECK(lines[1].at("line") == 2);
  CHECK(lines[2].at("line") == 3);
  CHECK(lines[2].at("index") == 1);
  CHECK(queue.empty());
}

TEST_CASE("how much of the input is answered follows what has left the queue") {
  AnswerQueue queue;
  queue.add_request({.line = 1, .prompt = {7}}, 100);
  queue.add_request({.line = 2, .prompt = {7}}, 250);
  queue.apply(last(2, {5}));
  queue.take_ready();
  CHECK(queue.totals().written_bytes == 0);
  queue.apply(last(1, {5}));
  queue.take_ready();
  CHECK(queue.totals().written_bytes == 250);
}

TEST_CASE("a bar says how much of the input is answered, and how fast tokens come") {
  GenerateProgress progress(0);
  CHECK(progress.bar(some_totals(), 1000, kSecond / 10) == "");
  CHECK(progress.bar(some_totals(), 1000, 2 * kSecond) ==
        "\r\033[Kgenerating [###############...............] 50%, 4 requests done, 96.0 tok/s");
  CHECK(progress.bar(some_totals(), 1000, 2 * kSecond + 1) == "");
  CHECK(progress.clear() == "\r\033[K");
  CHECK(progress.clear() == "");
}

TEST_CASE("of an input whose length nobody knows there is a count alone") {
  GenerateProgress progress(0);
  CHECK(progress.bar(some_totals(), 0, kSecond) ==
        "\r\033[Kgenerating 4 requests done, 192.0 tok/s");
}

TEST_CASE("the last line has all figures") {
  const GenerateProgress progress(kSecond);
  CHECK(
      progress.summary(some_totals(), 0, 3 * kSecond) ==
      "3 requests, 6 answers in 2.00 s: 300 prompt tokens (16 cached), 192 generated, 96.0 tok/s; "
      "1 line failed");
  CHECK(
      progress.summary({}, 2, 2 * kSecond) ==
      "2 lines were answered already; 0 requests, 0 answers in 1.00 s: 0 prompt tokens (0 cached), "
      "0 generated, 0.0 tok/s");
}

}  // namespace nvllm::launcher
