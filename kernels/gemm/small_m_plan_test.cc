#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/gemm/skinny_plan.h"

namespace nvllm::kernels {
namespace {

// Of two H200s, which differ in how many blocks of a cluster run at once.
const SkinnyMachine kMachines[] = {{.places = {0, 132, 132, 129, 120, 120, 120, 119, 120}},
                                   {.places = {0, 132, 132, 117, 120, 110, 102, 105, 120}}};
const SkinnyMachine& kMachine = kMachines[0];

void check_plan(const SkinnyPlan& plan, std::int64_t rows, std::int64_t outputs,
                std::int64_t inputs, const SkinnyMachine& machine) {
  CAPTURE(rows);
  CAPTURE(outputs);
  CAPTURE(inputs);
  CHECK(plan.rows >= rows);
  CHECK((plan.rows == 32 || plan.rows < rows + 16));
  const std::int64_t blocks = (outputs + plan.tiles * 64 - 1) / (plan.tiles * 64) * plan.splits;
  CHECK(blocks <= 2 * machine.places[plan.splits]);
  CHECK(plan.stages * plan.splits <= inputs / 64 + plan.splits);
  const int blocks_beside = blocks > machine.places[plan.splits] ? 2 : 1;
  CHECK(blocks_beside * skinny_shared_bytes(plan) <= 200 << 10);
  CHECK(skinny_shared_bytes(plan) >= plan.rows * plan.tiles * 64 * 4);  // all sums
  CHECK(plan.stages >= std::min<std::int64_t>(2, (inputs / 64 + plan.splits - 1) / plan.splits));
}

TEST_CASE("the blocks of a plan run at once, and their stages are needed") {
  int plans = 0;
  for (const SkinnyMachine& machine : kMachines) {
    for (const std::int64_t rows : {17, 24, 25, 40, 41, 64, 65, 90, 112, 113, 128}) {
      for (const std::int64_t outputs : {64, 1024, 2560, 4096, 6144, 19456, 24576}) {
        for (const std::int64_t inputs : {64, 1024, 2560, 4096, 9728, 12288}) {
          const auto plan = plan_skinny(rows, outputs, inputs, machine);
          if (plan) check_plan(*plan, rows, outputs, inputs, machine), ++plans;
        }
      }
    }
  }
  CHECK(plans > 300);
}

TEST_CASE("all products of a layer have a plan up to 112 rows, those of a small one up to 128") {
  struct Layer {
    std::int64_t hidden, attention, qkv, feed_forward;
  };
  constexpr Layer k06B{1024, 2048, 4096, 3072}, k4B{2560, 4096, 6144, 9728},
      k8B{4096, 4096, 6144, 12288};
  const auto planned = [](const Layer& layer, std::int64_t rows, const SkinnyMachine& machine) {
    const auto one = [&](std::int64_t outputs, std::int64_t inputs) {
      return plan_skinny(rows, outputs, inputs, machine).has_value();
    };
    return one(layer.qkv, layer.hidden) && one(layer.hidden, layer.attention) &&
           one(2 * layer.feed_forward, layer.hidden) && one(layer.hidden, layer.feed_forward);
  };
  for (const SkinnyMachine& machine : kMachines) {
    for (const std::int64_t rows : {17, 32, 64, 112}) {
      for (const Layer& layer : {k06B, k4B, k8B}) CHECK(planned(layer, rows, machine));
    }
    CHECK(planned(k06B, 128, machine));
    CHECK(!planned(k4B, 113, machine));
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
  CHECK(taken(112, 19456, 2560));
  CHECK(!taken(113, 19456, 2560));
}

}  // namespace
}  // namespace nvllm::kernels
