#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/memory/memory_plan.h"
#include "runtime/memory/testing/memory_plan_fixture.h"

namespace nvllm::runtime {
namespace {

// A CPU with a cache of `mib` MiB; a block takes one MiB, a sequence's states eight.
std::vector<RankMemory> machine(std::int64_t mib) {
  RankMemory rank = cpu();
  rank.available = 4 * static_cast<std::uint64_t>(mib) * kMiB;
  rank.state = 8 * kMiB;
  return {rank};
}

MemoryPlan plan_of(const EngineOptions& options, std::int64_t mib) {
  MemoryPlan got = plan(options, DeviceKind::cpu, machine(mib));
  CHECK(got.blocks + 8 * got.state_snapshots <= mib);
  return got;
}

TEST_CASE(
    "states: a quarter of the cache's memory is for snapshots, half of the swap space for states") {
  const MemoryPlan got = plan_of({}, 4096);
  CHECK(got.state_snapshots == 1024 / 8);
  CHECK(got.blocks == 4096 - 1024);
  CHECK(got.host_states == 2048 / 8);
  CHECK(got.host_blocks == 2048);
  CHECK(got.notes ==
        std::vector<std::string>{
            "prefix caching: 128 snapshots of linear attention's states, of 8 MiB each, "
            "may be kept (--state-snapshots)"});
}

TEST_CASE("states: no more snapshots than there are places for them in all sequences") {
  EngineOptions options;
  options.max_model_len = 1024;
  options.max_num_seqs = 4;
  CHECK(plan_of(options, 4096).state_snapshots == 4 * 1024 / 128);
  options.state_snapshot_tokens = 256;
  CHECK(plan_of(options, 4096).state_snapshots == 4 * 1024 / 256);
}

TEST_CASE("states: --max-model-len comes before snapshots") {
  EngineOptions options;
  options.max_model_len = 16 * 1000;
  const MemoryPlan little = plan_of(options, 1017);
  CHECK(little.state_snapshots == 2);
  CHECK(little.blocks == 1001);
  const MemoryPlan none = plan_of(options, 1007);
  CHECK(none.state_snapshots == 0);
  CHECK(none.notes.front() ==
        "prefix caching is off: there is no room for snapshots of linear attention's states, of 8 "
        "MiB; pass --state-snapshots, or a smaller --max-model-len");
  // By default the maximum length is what the rest of the memory holds.
  CHECK(plan_of({}, 1000).state_snapshots == 31);
  CHECK(plan_of({}, 1000).max_model_len == (1000 - 248) * 16);
}

TEST_CASE("states: as many snapshots as requested, or an error with the number that fits") {
  EngineOptions options;
  options.state_snapshots = 10;
  CHECK(plan_of(options, 1000).blocks == 920);
  options.state_snapshots = 125;
  CHECK(refusal(options, DeviceKind::cpu, machine(1000)) ==
        "--state-snapshots 125: the memory of the KV cache has room for 124 of 8 MiB; pass 124 or "
        "less, or auto");
  options.state_snapshots = 0;
  CHECK(plan_of(options, 1000).blocks == 1000);
  CHECK(plan_of(options, 1000).state_snapshots == 0);
}

TEST_CASE(
    "states: none are kept where prefixes are not cached, none swapped where all is recomputed") {
  EngineOptions options;
  options.prefix_caching = false;
  options.preemption = Preemption::recompute;
  const MemoryPlan got = plan_of(options, 1000);
  CHECK(got.state_snapshots == 0);
  CHECK(got.host_states == 0);
}

TEST_CASE("states: the rank with the largest decides") {
  std::vector<RankMemory> ranks = machine(4096);
  ranks.push_back(ranks.front());
  ranks[1].state = 16 * kMiB;
  ranks.push_back(ranks.front());
  ranks[2].state = 0;  // without heads
  const MemoryPlan got = plan({}, DeviceKind::cpu, ranks);
  CHECK(got.state_snapshots == 4096 / 3 / 4 / 16);
}

}  // namespace
}  // namespace nvllm::runtime
