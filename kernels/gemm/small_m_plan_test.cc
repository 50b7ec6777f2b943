#include "kernels/gemm/small_m_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

namespace nvllm::kernels {
namespace {

// The occupancy of two H200s, which differ in how many blocks of clusters run at once.
const SmallMOccupancy kGpus[] = {{.blocks = {0, 132, 132, 129, 120, 120, 120, 119, 120}},
                                 {.blocks = {0, 132, 132, 117, 120, 110, 102, 105, 120}}};
const SmallMOccupancy& kGpu = kGpus[0];

void check_tiling(const SmallMTiling& tiling, std::int64_t m, std::int64_t outputs,
                  std::int64_t inputs, const SmallMOccupancy& gpu) {
  CAPTURE(m);
  CAPTURE(outputs);
  CAPTURE(inputs);
  CHECK(tiling.tile_m >= m);
  CHECK((tiling.tile_m == 32 || tiling.tile_m < m + 16));
  const std::int64_t blocks =
      (outputs + tiling.tiles * 64 - 1) / (tiling.tiles * 64) * tiling.k_splits;
  CHECK(blocks <= 2 * gpu.blocks[tiling.k_splits]);
  CHECK(tiling.stages * tiling.k_splits <= inputs / 64 + tiling.k_splits);
  const int blocks_beside = blocks > gpu.blocks[tiling.k_splits] ? 2 : 1;
  CHECK(blocks_beside * small_m_shared_bytes(tiling) <= 200 << 10);
  CHECK(small_m_shared_bytes(tiling) >= tiling.tile_m * tiling.tiles * 64 * 4);  // all sums
  CHECK(tiling.stages >=
        std::min<std::int64_t>(2, (inputs / 64 + tiling.k_splits - 1) / tiling.k_splits));
}

TEST_CASE("the blocks of a plan run at once, and their stages are needed") {
  int plans = 0;
  for (const SmallMOccupancy& gpu : kGpus) {
    for (const std::int64_t m : {17, 24, 25, 40, 41, 64, 65, 90, 112, 113, 128}) {
      for (const std::int64_t outputs : {64, 1024, 2560, 4096, 6144, 19456, 24576}) {
        for (const std::int64_t inputs : {64, 1024, 2560, 4096, 9728, 12288}) {
          const auto plan = plan_small_m(m, outputs, inputs, gpu);
          if (plan) check_tiling(*plan, m, outputs, inputs, gpu), ++plans;
        }
      }
    }
  }
  CHECK(plans > 300);
}

TEST_CASE("all GEMMs of a layer have a plan up to M = 112, those of a small one up to 128") {
  struct Layer {
    std::int64_t hidden, attention, qkv, feed_forward;
  };
  constexpr Layer k06B{1024, 2048, 4096, 3072}, k4B{2560, 4096, 6144, 9728},
      k8B{4096, 4096, 6144, 12288};
  const auto planned = [](const Layer& layer, std::int64_t m, const SmallMOccupancy& gpu) {
    const auto one = [&](std::int64_t outputs, std::int64_t inputs) {
      return plan_small_m(m, outputs, inputs, gpu).has_value();
    };
    return one(layer.qkv, layer.hidden) && one(layer.hidden, layer.attention) &&
           one(2 * layer.feed_forward, layer.hidden) && one(layer.hidden, layer.feed_forward);
  };
  for (const SmallMOccupancy& gpu : kGpus) {
    for (const std::int64_t m : {17, 32, 64, 112}) {
      for (const Layer& layer : {k06B, k4B, k8B}) CHECK(planned(layer, m, gpu));
    }
    CHECK(planned(k06B, 128, gpu));
    CHECK(!planned(k4B, 113, gpu));
  }
}

TEST_CASE("what does not fit is left to other kernels") {
  const auto taken = [](std::int64_t m, std::int64_t outputs, std::int64_t inputs) {
    return plan_small_m(m, outputs, inputs, kGpu).has_value();
  };
  CHECK(taken(32, 4096, 1024));
  CHECK(!plan_small_m(32, 4096, 1024, {}).has_value());
  CHECK(!taken(kSmallMMinRows - 1, 4096, 1024));
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

TEST_CASE("quantized weights of all layers have a plan, with room for their scales") {
  const SmallMWeight weights[] = {{.stage_inputs = 64, .row_bytes = 64, .group = 128},
                                  {.stage_inputs = 128, .row_bytes = 64, .group = 128},
                                  {.stage_inputs = 128, .row_bytes = 64, .group = 32}};
  for (const SmallMWeight& weight : weights) {
    for (const std::int64_t m : {17, 32, 33, 64, 65, 128}) {
      for (const auto& shape :
           {std::pair{6144, 2560}, {19456, 2560}, {2560, 9728}, {24576, 4096}, {4096, 12288}}) {
        const std::int64_t outputs = shape.first, inputs = shape.second;
        CAPTURE(m);
        CAPTURE(outputs);
        CAPTURE(inputs);
        const auto plan = plan_small_m(m, outputs, inputs, kGpu, weight);
        REQUIRE(plan.has_value());
        CHECK(plan->tile_m >= m);
        CHECK(small_m_shared_bytes(*plan, weight, inputs) <= 200 << 10);
        // A split's groups, and one more where it begins inside of one.
        CHECK(small_m_groups_per_split(*plan, weight, inputs) * plan->k_splits * weight.group >=
              inputs);
      }
    }
    CHECK_FALSE(plan_small_m(32, 4096, 1024, {}, weight).has_value());
    CHECK_FALSE(plan_small_m(16, 4096, 1024, kGpu, weight).has_value());
  }
}

}  // namespace
}  // namespace nvllm::kernels
