// Streamed answers of a mock engine, which answers a prompt with the prompt's tokens.
#include "launcher/chat/streamed_answer.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/engine/testing/echo_rank.h"
#include "tokenizer/loading/tokenizer_json.h"

namespace nvllm::launcher {
namespace {

// Bytes C3 and A9 form an "é"; token 3 is a complete U+FFFD, as a model may write it.
constexpr const char* kTokenizer =
    R"({"model":{"type":"BPE","vocab":{"a":0,"\u00c3":1,"\u00a9":2},"merges":[]},
    "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
    "added_tokens":[{"id":3,"content":"\ufffd","special":false}]})";

// Continues an answer with `more` after a first part, of which `shown` was shown.
StreamedAnswer continued(const std::vector<std::int32_t>& first_part, const std::string& shown,
                         const std::vector<std::int32_t>& more) {
  const auto tokenizer = tokenizer::parse_tokenizer(kTokenizer);
  runtime::EchoRank rank(1);
  std::string streamed;
  const StreamedAnswer answer = stream_answer(
      rank.client(),
      {.id = 1, .request = {.prompt = more}, .first_part = first_part, .shown = shown}, *tokenizer,
      {.text = [&](std::string_view piece) { streamed += piece; }});
  rank.stop();
  CHECK(streamed == answer.text);
  return answer;
}

TEST_CASE("an answer that goes on replaces half a character by the whole one") {
  const StreamedAnswer answer = continued({0, 1}, "a\uFFFD", {2, 0});
  CHECK(answer.text == "\u00E9a");
  CHECK(answer.replaced == std::string("\uFFFD").size());
}

TEST_CASE("an answer that goes on behind a U+FFFD of the model's own replaces nothing") {
  const StreamedAnswer answer = continued({0, 3}, "a\uFFFD", {0, 0});
  CHECK(answer.text == "aa");
  CHECK(answer.replaced == 0);
}

constexpr const char* kChannels =
    R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]},
    "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
    "added_tokens":[{"id":3,"content":"<|start|>","special":true},
                    {"id":4,"content":"<|channel|>","special":true},
                    {"id":5,"content":"<|message|>","special":true},
                    {"id":6,"content":"<|end|>","special":true},
                    {"id":7,"content":"<|return|>","special":true},
                    {"id":8,"content":"analysis","special":false},
                    {"id":9,"content":"final","special":false}]})";

std::string text_of(const tokenizer::Tokenizer& tokenizer, const std::vector<int>& ids,
                    const std::vector<std::string>& stops = {}) {
  AnswerText answer(tokenizer, stops);
  std::string text;
  for (const int id : ids) text += answer.push(static_cast<tokenizer::TokenId>(id));
  return text + answer.finish();
}

TEST_CASE("the channel analysis stands between <think> and </think>, and headers are left out") {
  const auto tokenizer = tokenizer::parse_tokenizer(kChannels);
  CHECK(writes_channels(*tokenizer));
  CHECK(text_of(*tokenizer, {4, 8, 5, 0, 1, 6, 3, 2, 4, 9, 5, 2, 0, 7}) ==
        "<think>\nab\n</think>\n\nca");
  CHECK(text_of(*tokenizer, {4, 9, 5, 2, 0}) == "ca");
  CHECK(text_of(*tokenizer, {4, 8, 5, 0}) == "<think>\na");
  CHECK(text_of(*tokenizer, {4, 9, 5, 2, 0, 1, 0}, {"ab"}) == "c");
}

TEST_CASE("what a model with channels reads again is the answer without its reasoning") {
  CHECK(without_reasoning("<think>\nab\n</think>\n\nca") == "ca");
  CHECK(without_reasoning("<think>\nab") == "");
  CHECK(without_reasoning("ca <think>\n") == "ca <think>\n");
}

TEST_CASE("other tokenizers' texts stay as they are") {
  const auto tokenizer = tokenizer::parse_tokenizer(
      R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},
    "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
          "added_tokens":[{"id":1,"content":"<think>","special":false}]})");
  CHECK_FALSE(writes_channels(*tokenizer));
  CHECK(text_of(*tokenizer, {1, 0}) == "<think>a");
}

}  // namespace

}  // namespace nvllm::launcher
