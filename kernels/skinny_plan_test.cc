#include "kernels/skinny_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace nvllm::kernels {
namespace {

// An H200's.
const SkinnyMachine kMachine{.places = {0, 132, 132, 129, 120, 120, 120, 119, 120}};

TEST_CASE("the blocks of a plan run at once, and their stages are needed") {
  for (const std::int64_t rows : {17, 24, 32, 33, 64, 65, 128}) {
    for (const std::int64_t outputs : {64, 1024, 2560, 4096, 6144, 19456, 24576}) {
      for (const std::int64_t inputs : {64, 1024, 2560, 4096, 9728, 12288}) {
        CAPTURE(rows);
        CAPTURE(outputs);
        CAPTURE(inputs);
        const auto plan = plan_skinny(rows, outputs, inputs, kMachine);
        if (!plan) continue;
        CHECK(plan->rows >= rows);
        CHECK((plan->rows == 32 || plan->rows < 2 * rows));
        const std::int64_t tiles = (outputs + plan->tiles * 64 - 1) / (plan->tiles * 64);
        CHECK(tiles * plan->splits <= 2 * kMachine.places[plan->splits]);
        CHECK(plan->stages * plan->splits <= inputs / 64 + plan->splits);
        const int blocks_beside = tiles * plan->splits > kMachine.places[plan->splits] ? 2 : 1;
        CHECK(blocks_beside * skinny_shared_bytes(*plan) <= 200 << 10);
        CHECK(skinny_shared_bytes(*plan) >= plan->rows * plan->tiles * 64 * 4);  // all sums
        CHECK(plan->stages >=
              std::min<std::int64_t>(2, (inputs / 64 + plan->splits - 1) / plan->splits));
      }
    }
  }
}

TEST_CASE("what does not fit is left to others") {
  const auto taken = [](std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
    return plan_skinny(rows, outputs, inputs, kMachine).has_value();
  };
  CHECK(taken(32, 4096, 1024));
  CHECK(!plan_skinny(32, 4096, 1024, {}).has_value());
  CHECK(!taken(kSkinnyMinRows - 1, 4096, 1024));
  CHECK(!taken(129, 1024, 4096));
  CHECK(!taken(32, 4100, 1024));
  CHECK(!taken(32, 4096, 1056));
  CHECK(!taken(32, 4096, 0));
  CHECK(!taken(32, 0, 4096));
  CHECK(!taken(32, 151936, 2560));
  CHECK(taken(64, 1024, 4096));
  CHECK(taken(64, 4096, 1024));
  CHECK(taken(128, 4096, 1024));
  CHECK(taken(64, 19456, 2560));
  CHECK(!taken(65, 19456, 2560));
}

}  // namespace
}  // namespace nvllm::kernels
