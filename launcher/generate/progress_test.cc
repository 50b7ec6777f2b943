#include "launcher/generate/progress.h"

#include <doctest/doctest.h>

#include <string>

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

AnswerQueue::Totals some() {
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

TEST_CASE("a bar says how much of the input is answered, and how fast tokens come") {
  GenerateProgress progress(0);
  CHECK(progress.bar(some(), 1000, kSecond / 10) == "");
  CHECK(progress.bar(some(), 1000, 2 * kSecond) ==
        "\r\033[Kgenerating [###############...............] 50%, 4 requests done, 96.0 tok/s");
  CHECK(progress.bar(some(), 1000, 2 * kSecond + 1) == "");
  CHECK(progress.clear() == "\r\033[K");
  CHECK(progress.clear() == "");
}

TEST_CASE("of an input whose length nobody knows there is a count alone") {
  GenerateProgress progress(0);
  CHECK(progress.bar(some(), 0, kSecond) == "\r\033[Kgenerating 4 requests done, 192.0 tok/s");
}

TEST_CASE("the last line has all figures") {
  const GenerateProgress progress(kSecond);
  CHECK(
      progress.summary(some(), 0, 3 * kSecond) ==
      "3 requests, 6 answers in 2.00 s: 300 prompt tokens (16 cached), 192 generated, 96.0 tok/s; "
      "1 line failed");
  CHECK(
      progress.summary({}, 2, 2 * kSecond) ==
      "2 lines were answered already; 0 requests, 0 answers in 1.00 s: 0 prompt tokens (0 cached), "
      "0 generated, 0.0 tok/s");
}

}  // namespace nvllm::launcher
