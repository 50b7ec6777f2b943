#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/window_blocks.h"
#include "runtime/memory/memory_plan.h"
#include "runtime/memory/testing/memory_plan_fixture.h"

namespace nvllm::runtime {
namespace {

constexpr std::int64_t kWindow = 128;
constexpr std::int64_t kOfWindow = 9;  // blocks of 16 tokens

// A CPU with a cache of `mib` MiB; a block of the group with all tokens takes one MiB, a block of
// the window group window_mib.
struct Machine {
  std::int64_t mib = 0, window_mib = 1;

  std::vector<RankMemory> ranks() const {
    RankMemory rank = cpu();
    rank.available = rank.host_available = 4 * static_cast<std::uint64_t>(mib) * kMiB;
    rank.window_block = static_cast<std::uint64_t>(window_mib) * kMiB;
    return {rank};
  }
};

EngineOptions options_of(std::int64_t max_num_seqs, std::int64_t chunk) {
  EngineOptions options;
  options.max_num_seqs = max_num_seqs;
  options.max_num_batched_tokens = chunk;
  return options;
}

MemoryPlan plan_of(const EngineOptions& options, const Machine& machine) {
  MemoryPlan got = plan_memory(options, kModelLimit, DeviceKind::cpu, machine.ranks(), kWindow);
  CHECK(got.blocks + got.window_blocks * machine.window_mib <= machine.mib);
  return got;
}

TEST_CASE("groups: windows for all sequences and a step's rows, and the rest for all tokens") {
  EngineOptions options = options_of(8, 512);
  options.max_model_len = 16'000;  // 1000 blocks
  const MemoryPlan got = plan_of(options, {.mib = 3500});
  CHECK(got.window_blocks == 8 * kOfWindow + 32);
  CHECK(got.blocks == 3500 - got.window_blocks);
  CHECK(got.max_model_len == 16'000);
  REQUIRE(got.notes.size() == 1);
  CHECK(got.notes[0] ==
        "KV cache: 54336 tokens; layers with a window of 128 have room for 1664, since they keep "
        "their windows alone");
}

TEST_CASE("groups: neither gets more than it can use, and bytes that are requested go to both") {
  EngineOptions options = options_of(2, 512);
  options.max_model_len = 1600;
  MemoryPlan got = plan_of(options, {.mib = 3500});
  CHECK(got.blocks == 200);
  CHECK(got.window_blocks == 2 * kOfWindow + 32);
  options.kv_cache_memory_bytes = 1000 << 20;
  got = plan_of(options, {.mib = 3500});
  CHECK(got.blocks + got.window_blocks == 1000);
  CHECK(got.blocks - 200 == got.window_blocks - 2 * kOfWindow - 32);
}

TEST_CASE("groups: sequences within the window need as many blocks of either") {
  EngineOptions options = options_of(100, 512);
  options.max_model_len = 64;
  const MemoryPlan got = plan_of(options, {.mib = 3500});
  CHECK(got.blocks == 400);
  CHECK(got.window_blocks == 400);
}

TEST_CASE("groups: windows take no more than half where memory is short") {
  // 256 windows and a step would take more than the whole cache, those of three sequences a
  // seventh.
  EngineOptions options = options_of(256, 512);
  options.max_model_len = 16'000;
  const MemoryPlan got = plan_of(options, {.mib = 4000, .window_mib = 10});
  CHECK(got.window_blocks == 200);
  CHECK(got.blocks == 2000);
}

TEST_CASE(
    "groups: the longest sequence fits wherever it can, in chunks that are as large as fits") {
  EngineOptions options = options_of(256, 8192);
  options.max_model_len = 16'000;
  MemoryPlan got = plan_of(options, {.mib = 1000 + 20});
  CHECK(got.blocks == 1000);
  CHECK(got.window_blocks == 20);
  got = plan_of(options, {.mib = 1000 + kOfWindow});
  CHECK(got.blocks == 1000);
  CHECK(got.window_blocks == kOfWindow);
  CHECK(got.max_model_len == 16'000);
}

TEST_CASE("groups: a length that does not fit is refused with the one that does, or made that") {
  EngineOptions options = options_of(256, 8192);
  options.max_model_len = 16'000;
  const Machine machine{.mib = 1000 + kOfWindow - 1};
  std::string refused;
  try {
    plan_of(options, machine);
  } catch (const Error& error) {
    refused = error.what();
  }
  CHECK(refused.find("pass --max-model-len 15984 or less") != std::string::npos);
  options.max_model_len = 15'984;
  CHECK(plan_of(options, machine).blocks == 999);

  const MemoryPlan got = plan_of(options_of(256, 512), machine);
  CHECK(got.window_blocks == kOfWindow + 32);
  CHECK(got.max_model_len == (machine.mib - got.window_blocks) * 16);
}

TEST_CASE("groups: in less than two windows a sequence has as much of either") {
  const MemoryPlan got = plan_of(options_of(256, 512), {.mib = 7});
  CHECK(got.blocks >= 3);
  CHECK(got.window_blocks == 3);
  CHECK(got.max_model_len == got.blocks * 16);
}

// On any machine: as many of the longest sequences fit as would in half of the memory with the best
// division; and the scheduler can run the plan.
TEST_CASE("groups: at least half of the longest sequences that could fit at a time do") {
  for (const std::int64_t window_mib : {1, 2, 5}) {
    for (const std::int64_t mib : {30, 100, 500, 1000, 3000, 4000}) {
      for (const std::int64_t length : {100, 500, 4000, 30'000}) {
        for (const std::int64_t seqs : {1, 4, 64}) {
          CAPTURE(window_mib);
          CAPTURE(mib);
          CAPTURE(length);
          CAPTURE(seqs);
          EngineOptions options = options_of(seqs, 256);
          options.max_model_len = length;
          const std::int64_t all = divide_up(length, 16), windows = std::min(kOfWindow, all);
          const auto needed = [&](std::int64_t count) {
            return std::min(count * windows + 16, count * all);
          };
          std::int64_t could = 0;
          while (could < seqs && (could + 1) * all + needed(could + 1) * window_mib <= mib) ++could;
          if (all + windows * window_mib > mib) continue;  // refused
          const MemoryPlan got = plan_of(options, {.mib = mib, .window_mib = window_mib});
          CHECK(got.window_blocks >= windows);
          const std::int64_t of_all = got.blocks / all;
          CHECK(of_all >= 1);
          CHECK(2 * of_all >= could);
          CHECK(got.window_blocks >= needed(could));
        }
      }
    }
  }
}

TEST_CASE("groups: memory to swap to is divided as that of the device") {
  EngineOptions options = options_of(64, 512);
  options.swap_space_bytes = 400 << 20;
  const MemoryPlan got = plan_of(options, {.mib = 4000});
  CHECK(got.host_blocks + got.host_window_blocks <= 400);
  CHECK(got.host_blocks + got.host_window_blocks >= 398);
  CHECK(got.host_window_blocks == got.window_blocks / 10);
}

}  // namespace
}  // namespace nvllm::runtime
