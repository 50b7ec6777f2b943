#include "runtime/box_clocks.h"

#include <doctest/doctest.h>

namespace nvllm::runtime {

TEST_CASE("a time of a clock that is ahead is earlier by as much") {
  const ClockReading reading{.ours_ns = 1000, .theirs_ns = 1'000'000};
  for (const std::int64_t since : {-500, 0, 7}) {
    CHECK(our_time(reading, reading, 1'000'000 + since) == 1000 + since);
  }
  // A clock that began later may show negative times.
  CHECK(our_time({.ours_ns = 900, .theirs_ns = -100}, {.ours_ns = 900, .theirs_ns = -100}, 50) ==
        1050);
}

TEST_CASE("between two readings the difference grows evenly, and outside of them it stays") {
  // In 1 s of ours the other clock goes 1.0001 s.
  const ClockReading first{.ours_ns = 5'000'000'000, .theirs_ns = 20'000'000'000};
  const ClockReading last{.ours_ns = 6'000'000'000, .theirs_ns = 21'000'100'000};
  CHECK(our_time(first, last, first.theirs_ns) == first.ours_ns);
  CHECK(our_time(first, last, last.theirs_ns) == last.ours_ns);
  CHECK(our_time(first, last, 20'500'050'000) == 5'500'000'000);
  CHECK(our_time(first, last, 19'000'000'000) == 4'000'000'000);
  CHECK(our_time(first, last, 22'000'100'000) == 7'000'000'000);
}

}  // namespace nvllm::runtime
