#include "launcher/chat/abandonable_work.h"

#include <doctest/doctest.h>

#include <future>
#include <string>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

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
