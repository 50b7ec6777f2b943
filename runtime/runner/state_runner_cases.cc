// States of linear attention in the runner, against transformers' continuations: sequences that
// resume from a snapshot of another one's states, or whose states are swapped out for a while.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/runner/testing/runner_fixture.h"

namespace nvllm::runtime {
namespace {

using testing::DeviceRank;

constexpr const char* kHybridModels[] = {"qwen35-dense", "qwen3next"};
constexpr std::int64_t kPrefix = 48;  // three blocks

// On one and two ranks, and on five: with more ranks than key heads some ranks keep no states.
template <typename Body>
void with_models(const Body& body) {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2, 5}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [&](DeviceRank& rank) {
      for (const char* name : kHybridModels) {
        CAPTURE(std::string(name));
        body(rank, GoldenModel(name));
      }
    });
  }
}

std::vector<kvcache::BlockId> blocks_of_prefix(RunnerUnderTest& runner, std::uint32_t slot) {
  const std::vector<kvcache::BlockId>& blocks = runner.blocks(slot);
  return {blocks.begin(), blocks.begin() + kPrefix / 16};
}

// Slot 0 computes `first`, and saves a snapshot after its first kPrefix tokens. Slot 1 starts from
// it, and continues with blocks of the second golden prompt. Returns how its continuation differs
// from the golden one, on rank 0.
std::string wrong_behind_snapshot_of(DeviceRank& rank, const GoldenModel& golden,
                                     const std::vector<std::int32_t>& first) {
  const auto& prompt = golden.prompts[1];
  const auto length = static_cast<std::int64_t>(prompt.ids.size());
  RunnerUnderTest runner(rank, golden, {.state_snapshots = 2});
  runner.start(0, first).rows(0, kPrefix).copy_states({.save = {{0, 1}}});
  runner.start(2, prompt.ids).rows(2, length).step();
  const std::int64_t rest = static_cast<std::int64_t>(first.size()) - kPrefix;
  runner.rows(0, rest).rows(2, 1).step();  // later tokens are not in the snapshot
  runner.start(1, prompt.ids, blocks_of_prefix(runner, 2)).copy_states({.restore = {{1, 1}}});
  runner.rows(1, length - kPrefix).rows(0, 1).step();
  runner.decode(20);
  runner.finish();
  return rank.member.rank() > 0 ? "" : why_not_golden(prompt, runner.tokens(1), 0);
}

TEST_CASE("a sequence goes on from a snapshot of equal tokens as it does alone") {
  with_models([](DeviceRank& rank, const GoldenModel& golden) {
    CHECK(wrong_behind_snapshot_of(rank, golden, golden.prompts[1].ids) == "");
  });
}

TEST_CASE("from a snapshot of other tokens it says something else") {
  with_models([](DeviceRank& rank, const GoldenModel& golden) {
    const std::string wrong = wrong_behind_snapshot_of(rank, golden, golden.prompts[2].ids);
    if (rank.member.rank() == 0) CHECK(wrong != "");
  });
}

TEST_CASE("a place is read by the step that overwrites it") {
  with_models([](DeviceRank& rank, const GoldenModel& golden) {
    const auto& prompt = golden.prompts[1];
    const auto rest = static_cast<std::int64_t>(prompt.ids.size()) - kPrefix;
    RunnerUnderTest runner(rank, golden, {.state_snapshots = 1});
    runner.start(0, prompt.ids).rows(0, kPrefix).copy_states({.save = {{0, 0}}}).step();
    runner.start(1, prompt.ids, blocks_of_prefix(runner, 0));
    runner.copy_states({.restore = {{0, 1}}, .save = {{0, 0}}});
    runner.rows(0, rest).rows(1, rest).step();
    runner.decode(20);
    runner.finish();
    if (rank.member.rank() > 0) return;
    CHECK(why_not_golden(prompt, runner.tokens(0), 0) == "");
    CHECK(why_not_golden(prompt, runner.tokens(1), 0) == "");
  });
}

// Returns the tokens after swapping in, on rank 0.
std::vector<std::int32_t> swapped_out_and_in(DeviceRank& rank, const GoldenModel& golden,
                                             const StateCopies& back) {
  const auto& prompts = golden.prompts;
  RunnerUnderTest runner(rank, golden, {.blocks = 24, .host_states = 2});
  runner.start(0, prompts[1].ids).rows(0, 66).step();
  runner.decode(9);
  runner.finish();
  std::vector<std::int32_t> known = prompts[1].ids;
  known.insert(known.end(), prompts[1].continuation.begin(), prompts[1].continuation.begin() + 10);
  // Another sequence takes the slot, and so the place of its states, from the same step on.
  const std::int64_t blocks = runner.swap_out(0);
  runner.copy_states({.swap_out = {{0, 1}}});
  runner.start(0, prompts[2].ids).rows(0, 150).step();
  runner.decode(2);
  runner.swap_in(3, known, blocks).copy_states(back).rows(3, 1).rows(0, 1).step();
  runner.decode(20);
  runner.finish();
  return runner.tokens(3);
}

TEST_CASE("states go to the host with a sequence's blocks, and come back with them") {
  with_models([](DeviceRank& rank, const GoldenModel& golden) {
    const auto tokens = swapped_out_and_in(rank, golden, {.swap_in = {{1, 3}}});
    const auto lost = swapped_out_and_in(rank, golden, {});
    if (rank.member.rank() > 0) return;
    const auto& all = golden.prompts[1].continuation;
    const std::vector<std::int32_t> rest(all.begin() + 10, all.begin() + 31);
    CHECK(tokens == rest);
    CHECK(lost != rest);
  });
}

}  // namespace
}  // namespace nvllm::runtime
