#include "launcher/serve/api/answer_stream.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "launcher/serve/api/api_fixture.h"

namespace nvllm::launcher {
namespace {

using runtime::FinishReason;
using runtime::Update;

AnswerOptions stopping_at(const std::vector<std::string>& stop) {
  return {.stop = std::make_shared<const tokenizer::StopStrings>(stop)};
}

TEST_CASE("answer: a stop string is found however updates cut it; what follows is nothing") {
  const ApiFixture fixture;
  const std::vector<std::int32_t> ids = fixture.ids("it was the night he had");
  AnswerOptions options = stopping_at({"as the ni"});
  options.keep_token_ids = true;
  for (std::size_t cut = 0; cut <= ids.size(); ++cut) {
    AnswerStream answer(&fixture.tokenizer(), options, nullptr);
    const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(cut);
    answer.apply(ApiFixture::update({ids.begin(), middle}));
    answer.apply(ApiFixture::update({middle, ids.end()}));
    answer.apply(ApiFixture::update({}, FinishReason::abort));
    CHECK(answer.delta().text.content == "it w");
    CHECK(answer.finish_reason() == "stop");
    CHECK(answer.stop_reason().text == "as the ni");
    CHECK(answer.tokens() == 4);  // with the one that completed it
    CHECK(answer.delta().token_ids.size() == 4);
  }
}

TEST_CASE("answer: what may begin a stop string is held back, and comes at the end") {
  const ApiFixture fixture;
  const AnswerOptions options = stopping_at({"was not"});
  AnswerStream answer(&fixture.tokenizer(), options, nullptr);
  answer.apply(ApiFixture::update(fixture.ids("it was")));
  CHECK(answer.delta().text.content == "it ");
  CHECK_FALSE(answer.ended());
  answer.apply(ApiFixture::update({}, FinishReason::length));
  CHECK(answer.delta().text.content == "it was");
  CHECK(answer.finish_reason() == "length");
}

TEST_CASE("answer: the token that ends it is counted but is no text") {
  const ApiFixture fixture;
  AnswerOptions options = {.skip_special_tokens = false, .stop_token_ids = {265}};
  const std::vector<std::int32_t> tokens = {276, 265};
  AnswerStream without(&fixture.tokenizer(), options, nullptr);
  without.apply(ApiFixture::update(tokens, FinishReason::stop));
  CHECK(without.delta().text.content == "is");
  CHECK(without.stop_reason().token == 265);
  CHECK(without.tokens() == 2);
  options.include_stop_str_in_output = true;
  AnswerStream with(&fixture.tokenizer(), options, nullptr);
  with.apply(ApiFixture::update(tokens, FinishReason::stop));
  CHECK(with.delta().text.content == "isll");
}

TEST_CASE("answer: logprobs of tokens behind a stop string are none of it") {
  const ApiFixture fixture;
  AnswerOptions options = stopping_at({"was"});
  options.keep_logprobs = true;
  AnswerStream answer(&fixture.tokenizer(), options, nullptr);
  Update update = ApiFixture::update(fixture.ids("it was the night"));
  update.logprobs.resize(update.tokens.size());
  answer.apply(update);
  CHECK(answer.delta().logprobs.size() == 2);
}

}  // namespace
}  // namespace nvllm::launcher
