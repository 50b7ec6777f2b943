#include "launcher/chat/chat_session.h"

#include <doctest/doctest.h>

#include <future>
#include <string>
#include <thread>

#include "base/error.h"
#include "launcher/chat/abandonable_work.h"
#include "launcher/chat/streamed_answer.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST_CASE("an answer's numbers are those of its tokens") {
  StreamedAnswer answer;
  answer.token_ids.resize(52);
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

TEST_CASE("a prompt's progress is shown after a second, in one line, and removed") {
  PromptProgress progress(1000, 5 * kSecond);
  CHECK(progress.update(100, 5 * kSecond + kSecond / 2) == "");
  CHECK(progress.finish() == "");
  CHECK(progress.update(0, 6 * kSecond) == "\r\033[Kreading the prompt: 0 of 1000 tokens");
  CHECK(progress.update(200, 6 * kSecond + 1) == "");  // too soon
  CHECK(progress.update(250, 7 * kSecond) ==
        "\r\033[Kreading the prompt: 250 of 1000 tokens, 6.00 s left");
  CHECK(progress.finish() == "\r\033[K");
  CHECK(progress.finish() == "");
}

TEST_CASE("a prompt that is read in less than a second shows nothing") {
  PromptProgress progress(10, 0);
  CHECK(progress.update(5, kSecond - 1) == "");
  CHECK(progress.finish() == "");
}

TEST_CASE("work that nobody stops gives its result, or its error") {
  AbandonableWork work;
  CHECK(work.run([] { return std::string("done"); }, [] { return false; }) == "done");
  CHECK_THROWS_WITH_AS(work.run([]() -> int { fail("too long"); }, [] { return false; }),
                       "too long", Error);
}

TEST_CASE("work that is stopped goes on alone, and says when it is over") {
  AbandonableWork work;
  std::promise<void> go_on;
  const auto slow = [waiting = go_on.get_future().share()] {
    waiting.wait();
    return 1;
  };
  int calls = 0;
  CHECK_FALSE(work.run(slow, [&] { return ++calls == 3; }).has_value());
  CHECK(calls == 3);
  CHECK(work.busy());
  // Other work is not behind it.
  CHECK(work.run([] { return 2; }, [] { return false; }) == 2);
  CHECK(work.busy());
  go_on.set_value();
  while (work.busy()) std::this_thread::yield();
}

}  // namespace
}  // namespace nvllm::launcher
