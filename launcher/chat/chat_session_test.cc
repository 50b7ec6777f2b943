#include "launcher/chat/chat_session.h"

#include <doctest/doctest.h>

namespace nvllm::launcher {

TEST_CASE("an answer's numbers are those of its tokens") {
  StreamedAnswer answer;
  answer.tokens = 52;
  answer.prompt_tokens = 48;
  answer.cached_tokens = 32;
  answer.first_token_s = 0.21;
  answer.total_s = 1.71;
  CHECK(answer.statistics() ==
        "52 tokens in 1.71 s, 34.0 tok/s; TTFT 210 ms; prompt 48 tokens (32 cached)");
}

TEST_CASE("an answer that was ended before its first token has no times") {
  StreamedAnswer answer;
  answer.prompt_tokens = 1;
  CHECK(answer.statistics() == "no token; prompt 1 token");
}

}  // namespace nvllm::launcher
