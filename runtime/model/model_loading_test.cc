#include "runtime/model/model_loading.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace nvllm::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Checks the same states repeatedly for `time`; returns the error, or "fine".
std::string after(LoadWatch& watch, const std::vector<LoadState>& states, Nanoseconds time) {
  constexpr Nanoseconds kRound = milliseconds(100);
  try {
    for (; time.count() > 0; time -= kRound) watch.check(states, kRound);
  } catch (const Error& error) {
    return error.what();
  }
  return "fine";
}

}  // namespace

TEST_CASE("a rank that has loaded nothing for longer than the limit is named") {
  LoadWatch watch(3, seconds(2));
  CHECK(after(watch, {{5, 9, false}, {5, 9, false}, {9, 9, true}}, seconds(1)) == "fine");
  CHECK(after(watch, {{6, 9, false}, {5, 9, false}, {9, 9, true}}, seconds(2)) ==
        "rank 1 has loaded nothing for 2.10 s, 5 of 9 bytes: does the disk still answer? A longer "
        "--step-timeout waits longer");
}

TEST_CASE("who gets on, however slowly, and who is done may take any time") {
  LoadWatch watch(2, seconds(2));
  for (std::uint64_t bytes = 1; bytes < 20; ++bytes) {
    CHECK(after(watch, {{bytes, 100, false}, {7, 7, true}}, milliseconds(1900)) == "fine");
  }
}

TEST_CASE("time in which everything was stopped is no rank's") {
  LoadWatch watch(1, seconds(2));
  // A round counts as at most a fifth of a second.
  for (int i = 0; i < 5; ++i) watch.check({{1, 9, false}}, seconds(3600));
  CHECK(after(watch, {{1, 9, false}}, milliseconds(900)) == "fine");
  CHECK(after(watch, {{1, 9, false}}, seconds(1)) != "fine");
}

}  // namespace nvllm::runtime
