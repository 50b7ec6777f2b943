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

}  // namespace
}  // namespace nvllm::launcher
