// POST /v1/completions: the form of its responses.
#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

using nlohmann::json;
using runtime::FinishReason;
using runtime::TokenLogprobs;

const char* const kHead =
    R"({"id":"cmpl-7","object":"text_completion","created":1700000000,"model":"tiny","choices":[)";

std::string text_of(const std::vector<json>& chunks, int index) {
  std::string text;
  for (const json& chunk : chunks) {
    for (const json& choice : chunk["choices"]) {
      if (choice["index"] == index) text += choice["text"].get<std::string>();
    }
  }
  return text;
}

TEST_CASE("completion: the whole body") {
  ApiFixture fixture;
  CHECK(fixture.response(parse_completion, R"({"prompt":"who is it"})", "it is \"him\"") ==
        std::string(kHead) +
            R"({"index":0,"text":"it is \"him\"","logprobs":null,"finish_reason":"stop",)" +
            R"("stop_reason":null}],"usage":{"prompt_tokens":3,"total_tokens":10,)" +
            R"("completion_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST_CASE("completion: a stream's events, byte by byte") {
  ApiFixture fixture;
  const std::string event = std::string("data: ") + kHead;
  CHECK(
      fixture.response(parse_completion,
                       R"({"prompt":"who","stream":true,"stream_options":{"include_usage":true}})",
                       "it was") ==
      event +
          R"({"index":0,"text":"it","logprobs":null,"finish_reason":null,"stop_reason":null}])" +
          ",\"usage\":null}\n\n" + event +
          R"({"index":0,"text":" was","logprobs":null,"finish_reason":null,"stop_reason":null}])" +
          ",\"usage\":null}\n\n" + event +
          R"({"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}])" +
          ",\"usage\":null}\n\n" + event +
          R"(],"usage":{"prompt_tokens":1,"total_tokens":4,"completion_tokens":3,)" +
          R"("prompt_tokens_details":{"cached_tokens":0}}})" + "\n\ndata: [DONE]\n\n");
}

TEST_CASE("completion: no usage event unless it is asked for; in every event if that is") {
  ApiFixture fixture;
  for (const json& chunk : events_of(
           fixture.response(parse_completion, R"({"prompt":"who","stream":true})", "it is"))) {
    CHECK(chunk["usage"].is_null());
  }
  const auto chunks = events_of(fixture.response(
      parse_completion,
      R"({"prompt":"who","stream":true,"stream_options":{"continuous_usage_stats":true}})",
      "it was"));
  REQUIRE(chunks.size() == 3);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    CHECK(chunks[i]["usage"]["completion_tokens"] == i + 1);
    CHECK(chunks[i]["usage"]["prompt_tokens"] == 1);
  }
}

TEST_CASE("completion: prompts of all four kinds; choices are numbered prompt by prompt") {
  ApiFixture fixture;
  const auto prompts = [&](const std::string& prompt) {
    const auto call = fixture.call(parse_completion, "{\"prompt\":" + prompt + ",\"n\":2}");
    std::vector<std::vector<std::int32_t>> ids;
    for (const runtime::Request& request : call->requests()) ids.push_back(request.prompt);
    return ids;
  };
  using Ids = std::vector<std::vector<std::int32_t>>;
  CHECK(prompts("\"who\"") == Ids{fixture.ids("who")});
  CHECK(prompts(R"(["who","it was"])") == Ids{fixture.ids("who"), fixture.ids("it was")});
  CHECK(prompts("[5,6]") == Ids{{5, 6}});
  CHECK(prompts("[[5,6],[7]]") == Ids{{5, 6}, {7}});

  const json body =
      parse_json(fixture.response(parse_completion, R"({"prompt":["who","it"],"n":2})", "is"));
  REQUIRE(body["choices"].size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(body["choices"][i]["index"] == i);
  CHECK(body["usage"]["prompt_tokens"] == 2);      // not per choice
  CHECK(body["usage"]["completion_tokens"] == 8);  // of all choices

  CHECK(fixture.refusal(parse_completion, R"({"prompt":[]})") ==
        "400 [prompt] prompt: an empty prompt");
  CHECK(fixture.refusal(parse_completion, R"({"prompt":""})") ==
        "400 [prompt] prompt: an empty prompt");
  CHECK(fixture.refusal(parse_completion, R"({"prompt":[[]]})").starts_with("400 [prompt]"));
  CHECK(fixture.refusal(parse_completion, R"({"prompt":{"a":1}})").starts_with("400 [prompt]"));
  CHECK(fixture.refusal(parse_completion, R"({"prompt":[1,"a"]})").starts_with("400 [prompt]"));
  CHECK(fixture.refusal(parse_completion, R"({"prompt":["a",1]})").starts_with("400 [prompt]"));
  CHECK(fixture.refusal(parse_completion, R"({"prompt":[1,-1]})").starts_with("400 [prompt]"));
  CHECK(fixture.refusal(parse_completion, R"({"prompt":[1,4294967297]})")
            .starts_with("400 [prompt]"));
  CHECK(fixture.refusal(parse_completion, "{}").starts_with("400 [prompt] prompt: missing"));
}

TEST_CASE("completion: more choices than memory is for are refused") {
  ApiFixture fixture;
  std::string prompts = "\"a\"";
  for (int i = 0; i < 99; ++i) prompts += ",\"a\"";
  CHECK(fixture.refusal(parse_completion, "{\"n\":1000,\"prompt\":[" + prompts + "]}") ==
        "400 [prompt] prompt: 100 prompts with n 1000 ask for 100000 choices; at most 16384 are "
        "allowed");
}

TEST_CASE("completion: a stream says what the whole body says") {
  ApiFixture fixture;
  const std::string text =
      "The lighthouse keeper's café was naïve: 🙂🙂 \"你好\" \\ \t\n\x01 안녕";
  for (const char* const more : {"", ",\"stop\":[\"\\\\\"]", ",\"stream_interval\":3",
                                 ",\"stop\":\"🙂 \",\"include_stop_str_in_output\":true"}) {
    CAPTURE(more);
    const std::string fields = str(R"("n":3,"prompt":"who")", more);
    const json whole = parse_json(fixture.response(parse_completion, "{" + fields + "}", text));
    const auto chunks =
        events_of(fixture.response(parse_completion, "{" + fields + ",\"stream\":true}", text));
    for (int i = 0; i < 3; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(text_of(chunks, i) == whole["choices"][at]["text"]);
      CHECK(whole["choices"][at]["finish_reason"] == "stop");
    }
    if (*more == '\0') CHECK(text_of(chunks, 0) == text);
  }
}

TEST_CASE("completion: a stop string ends a choice, and then the request") {
  ApiFixture fixture;
  const auto call =
      fixture.call(parse_completion, R"({"prompt":"who","n":2,"stop":["as the"],"stream":true})");
  std::string out;
  call->begin(out);
  const auto say = [&](std::int32_t answer, std::string_view text, FinishReason finish) {
    runtime::Update update = ApiFixture::update(fixture.ids(text), finish);
    update.index = answer;
    call->apply(0, update, out);
  };
  say(0, "it was", FinishReason::none);
  CHECK(text_of(events_of(out + "data: [DONE]\n\n"), 0) ==
        "it w");  // "as" may begin the stop string
  say(0, " the", FinishReason::none);
  CHECK_FALSE(call->stopped(0));  // the other choice goes on
  CHECK_FALSE(call->done());
  say(1, "it was the", FinishReason::none);
  CHECK(call->stopped(0));
  CHECK_FALSE(call->done());
  say(0, " night", FinishReason::abort);  // what the engine did before the abort arrived
  say(1, "", FinishReason::abort);
  CHECK(call->done());
  CHECK_FALSE(call->stopped(0));
  call->finish(out);
  const auto chunks = events_of(out);
  CHECK(text_of(chunks, 0) == "it w");
  CHECK(text_of(chunks, 1) == "it w");
  CHECK(chunks.back()["choices"][0]["finish_reason"] == "stop");
  CHECK(chunks.back()["choices"][0]["stop_reason"] == "as the");
}

TEST_CASE("completion: why an answer ended") {
  ApiFixture fixture;
  const auto ending = [&](std::vector<std::int32_t> tokens, FinishReason finish) {
    const auto call = fixture.call(parse_completion, R"({"prompt":"who","stop_token_ids":[265]})");
    std::string out;
    call->begin(out);
    call->apply(0, ApiFixture::update(std::move(tokens), finish), out);
    CHECK(out.empty());
    call->finish(out);
    const json choice = parse_json(out)["choices"][0];
    return str(choice["text"].get<std::string>(), "|", choice["finish_reason"].get<std::string>(),
               "|", json_text(choice["stop_reason"]));
  };
  CHECK(ending({276, 265}, FinishReason::stop) == "is|stop|265");  // "ll" is no text
  CHECK(ending({276, 702}, FinishReason::stop) == "is|stop|null");
  CHECK(ending({276, 265}, FinishReason::length) == "isll|length|null");
  CHECK(ending({276}, FinishReason::abort) == "is|abort|null");
}

TEST_CASE("completion: cached tokens are those of all prompts, as the first answer found them") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_completion, R"({"prompt":[[1,2],[3,4]],"n":2})");
  std::string out;
  call->begin(out);
  for (std::size_t prompt = 0; prompt < 2; ++prompt) {
    for (std::int32_t answer = 0; answer < 2; ++answer) {
      runtime::Update update = ApiFixture::update({5}, FinishReason::length);
      update.index = answer;
      update.cached_tokens = answer > 0 ? 100 : prompt == 0 ? 1 : 2;  // read by the first
      call->apply(prompt, update, out);
    }
  }
  CHECK(call->done());
  call->finish(out);
  CHECK(parse_json(out)["usage"]["prompt_tokens_details"]["cached_tokens"] == 3);
}

// --- Log probabilities ---

TokenLogprobs logprobs_of(std::int32_t token, float logprob, std::int32_t other, float others) {
  TokenLogprobs result{.chosen = {.token = token, .logprob = logprob, .rank = 2}};
  result.top = {{.token = other, .logprob = others, .rank = 1}};
  return result;
}

TEST_CASE("completion: what lm-eval asks for: echo, one token, logprobs of the prompt") {
  ApiFixture fixture;
  const auto call =
      fixture.call(parse_completion, R"({"prompt":[276,265,267],"echo":true,"max_tokens":1,)"
                                     R"("logprobs":1,"temperature":0})");
  CHECK(call->requests()[0].sampling.logprobs == 1);
  CHECK(call->requests()[0].sampling.prompt_logprobs == 1);
  CHECK(call->requests()[0].sampling.max_tokens == 1);
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({268}, FinishReason::length);
  update.prompt_logprobs = {logprobs_of(265, -2.5F, 267, -0.5F), logprobs_of(267, -1, 267, -1)};
  update.logprobs = {logprobs_of(268, -0.25F, 268, -0.25F)};
  call->apply(0, update, out);
  call->finish(out);
  CHECK(out == std::string(kHead) +
                   R"({"index":0,"text":"isll n wh","logprobs":{"text_offset":[0,2,4,6],)" +
                   R"("token_logprobs":[null,-2.5,-1,-0.25],"tokens":["is","ll"," n"," wh"],)" +
                   R"("top_logprobs":[null,{" n":-0.5,"ll":-2.5},{" n":-1},{" wh":-0.25}]},)" +
                   R"("finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":3,)" +
                   R"("total_tokens":4,"completion_tokens":1,)" +
                   R"("prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST_CASE("completion: echo of a prompt alone, with max_tokens 0") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_completion,
                                 R"({"prompt":"is it","echo":true,"max_tokens":0,"logprobs":0})");
  CHECK(call->requests()[0].sampling.max_tokens == 1);
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({268}, FinishReason::length);
  update.prompt_logprobs = {{.chosen = {.token = 530, .logprob = -3}}};
  update.logprobs = {{.chosen = {.token = 268, .logprob = -4}}};
  call->apply(0, update, out);
  call->finish(out);
  const json body = parse_json(out);
  CHECK(body["choices"][0]["text"] == "is it");
  CHECK(body["choices"][0]["logprobs"]["tokens"] == json({"is", " it"}));
  CHECK(body["choices"][0]["logprobs"]["token_logprobs"] == json({nullptr, -3}));
  CHECK(body["usage"]["completion_tokens"] == 0);

  const auto chunks = events_of(
      fixture.response(parse_completion,
                       R"({"prompt":"is it","echo":true,"max_tokens":0,"stream":true,)"
                       R"("stream_options":{"include_usage":true,"continuous_usage_stats":true}})",
                       "who"));
  REQUIRE(!chunks.empty());
  for (const json& chunk : chunks) CHECK(chunk["usage"]["completion_tokens"] == 0);
  CHECK(text_of(chunks, 0) == "is it");
}

TEST_CASE("completion: a streamed echo waits for the prompt's logprobs") {
  ApiFixture fixture;
  const auto call = fixture.call(
      parse_completion,
      R"({"prompt":[276,265],"echo":true,"max_tokens":2,"logprobs":0,"n":2,"stream":true})");
  std::string out;
  call->begin(out);
  runtime::Update second = ApiFixture::update({267}, FinishReason::length);
  second.index = 1;
  second.logprobs = {{.chosen = {.token = 267, .logprob = -1}}};
  call->apply(0, second, out);
  CHECK(out.empty());
  runtime::Update first = ApiFixture::update({268}, FinishReason::length);
  first.prompt_logprobs = {{.chosen = {.token = 265, .logprob = -2}}};
  first.logprobs = {{.chosen = {.token = 268, .logprob = -3}}};
  call->apply(0, first, out);
  call->finish(out);
  const auto chunks = events_of(out);
  REQUIRE(chunks.size() == 2);
  CHECK(chunks[0]["choices"][0]["text"] == "isll wh");
  CHECK(chunks[0]["choices"][0]["logprobs"]["token_logprobs"] == json({nullptr, -2, -3}));
  CHECK(chunks[1]["choices"][0]["text"] == "isll n");
  CHECK(chunks[1]["choices"][0]["logprobs"]["token_logprobs"] == json({nullptr, -2, -1}));
}

TEST_CASE("completion: echoed text is the prompt's own, in a stream once") {
  ApiFixture fixture;
  const auto chunks = events_of(fixture.response(
      parse_completion, R"({"prompt":"who <|im_end|>","echo":true,"stream":true})", "it is"));
  CHECK(text_of(chunks, 0) == "who <|im_end|>it is");
}

TEST_CASE("completion: what JSON cannot say is -9999, tokens are called by ids where wanted") {
  ApiFixture fixture;
  const auto call = fixture.call(
      parse_completion,
      R"({"prompt":"who","logprobs":1,"return_tokens_as_token_ids":true,"max_tokens":1})");
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({268}, FinishReason::length);
  update.logprobs = {logprobs_of(268, -std::numeric_limits<float>::infinity(), 267, -0.5F)};
  call->apply(0, update, out);
  call->finish(out);
  const json logprobs = parse_json(out)["choices"][0]["logprobs"];
  CHECK(logprobs["tokens"] == json({"token_id:268"}));
  CHECK(logprobs["token_logprobs"] == json({-9999}));
  CHECK(logprobs["top_logprobs"][0] == json({{"token_id:267", -0.5}, {"token_id:268", -9999}}));
}

TEST_CASE("completion: tokens that share a text are named once in top_logprobs") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_completion, R"({"prompt":"who","logprobs":2})");
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({268}, FinishReason::length);
  TokenLogprobs token{.chosen = {.token = 268, .logprob = -3}};
  token.top = {{.token = 160, .logprob = -1},
               {.token = 161, .logprob = -2}};  // beginnings of characters
  update.logprobs = {token};
  call->apply(0, update, out);
  call->finish(out);
  CHECK(out.find(R"("top_logprobs":[{"":-1," wh":-3}])") != std::string::npos);
}

TEST_CASE("completion: the last token of a character has its text, and offsets fit the text") {
  ApiFixture fixture;
  const std::vector<std::int32_t> ids = fixture.ids("日本 n");
  REQUIRE(ids.size() == 7);  // a token of each byte
  for (const bool stream : {false, true}) {
    CAPTURE(stream);
    const auto call = fixture.call(
        parse_completion,
        str(R"({"prompt":"who","logprobs":1,"stream":)", stream ? "true" : "false", "}"));
    std::string out;
    call->begin(out);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool last = i + 1 == ids.size();
      runtime::Update update =
          ApiFixture::update({ids[i]}, last ? FinishReason::length : FinishReason::none);
      // Something else without a text is more likely.
      update.logprobs = {logprobs_of(ids[i], -3, 160, -1)};
      call->apply(0, update, out);
    }
    call->finish(out);
    json tokens = json::array(), offsets = json::array(), top = json::array();
    const auto add = [&](const json& choice) {
      const json& logprobs = choice["logprobs"];
      for (const json& each : logprobs["tokens"]) tokens.push_back(each);
      for (const json& each : logprobs["text_offset"]) offsets.push_back(each);
      for (const json& each : logprobs["top_logprobs"]) top.push_back(each);
    };
    if (stream) {
      for (const json& chunk : events_of(out)) add(chunk["choices"][0]);
    } else {
      add(parse_json(out)["choices"][0]);
    }
    CHECK(tokens == json({"", "", "日", "", "", "本", " n"}));
    CHECK(offsets == json({0, 0, 0, 1, 1, 1, 2}));
    for (std::size_t i = 0; i < ids.size(); ++i) CHECK(top[i][tokens[i]] == -3);
  }
}

TEST_CASE("completion: prompt_logprobs and token ids as vLLM shows them") {
  ApiFixture fixture;
  const auto call = fixture.call(
      parse_completion, R"({"prompt":[276,265],"prompt_logprobs":1,"return_token_ids":true})");
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({268}, FinishReason::length);
  update.prompt_logprobs = {logprobs_of(265, -2, 267, -1)};
  call->apply(0, update, out);
  call->finish(out);
  const json choice = parse_json(out)["choices"][0];
  CHECK(choice["prompt_token_ids"] == json({276, 265}));
  CHECK(choice["token_ids"] == json({268}));
  CHECK(json_text(choice["prompt_logprobs"]) ==
        R"([null,{"265":{"decoded_token":"ll","logprob":-2,"rank":2},)"
        R"("267":{"decoded_token":" n","logprob":-1,"rank":1}}])");
  CHECK(fixture.refusal(parse_completion, R"({"prompt":"who","prompt_logprobs":1,"stream":true})")
            .starts_with("400 [prompt_logprobs]"));
}

TEST_CASE("completion: an error in a stream is an event, then the end") {
  ApiFixture fixture;
  const auto call = fixture.call(parse_completion, R"({"prompt":"who","stream":true})");
  std::string out;
  call->begin(out);
  call->fail(500, "rank 0 died", out);
  CHECK(out == "data: " + error_body(500, "rank 0 died") + "\n\ndata: [DONE]\n\n");
}

TEST_CASE("completion: without a tokenizer, ids go in and come out") {
  ApiFixture fixture;
  fixture.context().text = nullptr;
  CHECK(fixture.refusal(parse_completion, R"({"prompt":"who"})").starts_with("400 [prompt]"));
  CHECK(
      fixture.refusal(parse_completion, R"({"prompt":[1],"stop":"x"})").starts_with("400 [stop]"));
  const auto call =
      fixture.call(parse_completion, R"({"prompt":[1],"return_token_ids":true,"logprobs":0})");
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({5, 6}, FinishReason::length);
  update.logprobs = {{.chosen = {.token = 5}}, {.chosen = {.token = 6}}};
  call->apply(0, update, out);
  call->finish(out);
  const json choice = parse_json(out)["choices"][0];
  CHECK(choice["token_ids"] == json({5, 6}));
  CHECK(choice["logprobs"]["tokens"] == json({"token_id:5", "token_id:6"}));
}

TEST_CASE("completion: with its token ids an answer has log-probabilities by ids, too") {
  ApiFixture fixture;
  const auto call = fixture.call(
      parse_completion, R"({"prompt":[276],"return_token_ids":true,"logprobs":1,"max_tokens":1})");
  std::string out;
  call->begin(out);
  runtime::Update update = ApiFixture::update({265}, FinishReason::length);
  update.logprobs = {logprobs_of(265, -2, 267, -1)};
  call->apply(0, update, out);
  call->finish(out);
  CHECK(json_text(parse_json(out)["choices"][0]["sample_logprobs"]) ==
        R"([{"265":{"decoded_token":"ll","logprob":-2,"rank":2},)"
        R"("267":{"decoded_token":" n","logprob":-1,"rank":1}}])");
}

}  // namespace
}  // namespace nvllm::launcher
