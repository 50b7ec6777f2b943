// Two groups of layers: those with a window have blocks of their own, and keep only the window.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/scheduler/testing/scheduler_fixture.h"

namespace nvllm::runtime {
namespace {

// Blocks of 4 tokens, of which the window group has `blocks`.
SchedulerLimits with_group(std::int64_t window, std::int64_t blocks) {
  SchedulerLimits limits = roomy();
  limits.resident_blocks = limits.blocks;
  limits.window_group = {.window = window, .blocks = blocks, .host_blocks = 100};
  return limits;
}

std::int64_t used(const Group& group) {
  const SchedulerStatistics now = group.scheduler.statistics();
  return now.total_window_blocks - now.free_window_blocks;
}

TEST_CASE("a long prompt in chunks and its answer hold a window and a chunk, never more") {
  SchedulerLimits limits = with_group(10, 50);
  limits.max_num_batched_tokens = 16;
  Group group(limits);
  group.scheduler.add(sequence(1, 400, 100));
  while (!group.scheduler.idle()) {
    const bool prompt = group.answers[1].empty();
    group.step();
    // At most the tokens of 16 rows and the 9 before the first of these, in blocks of 4; then one
    // row.
    CHECK(used(group) <= (prompt ? 7 : 4));
  }
  CHECK(group.answers[1].size() == 100);
  CHECK(used(group) == 0);
}

TEST_CASE("a sequence goes on in a group that has room for no more than its window") {
  SchedulerLimits limits = with_group(10, kvcache::window_blocks(10, 4));
  Group group(limits);
  group.scheduler.add(sequence(1, 300, 300));
  group.scheduler.add(sequence(2, 30, 30));
  group.run();
  CHECK(group.answers[1].size() == 300);
  CHECK(group.answers[2].size() == 30);
  CHECK(group.scheduler.statistics().preemptions == 0);
}

TEST_CASE("nobody is admitted whose window has no room, and nobody who runs waits for any") {
  SchedulerLimits limits = with_group(8, 12);  // 3 blocks for each sequence, and 3 for a chunk
  Group group(limits);
  for (SequenceId id = 1; id <= 5; ++id) group.scheduler.add(sequence(id, 20, 60));
  std::int64_t max_running = 0;
  while (!group.scheduler.idle()) {
    group.step();
    const SchedulerStatistics now = group.scheduler.statistics();
    max_running = std::max(max_running, now.running);
    for (const auto& [slot, rows] : group.rows()) CHECK(rows > 0);
  }
  CHECK(max_running == 3);
  CHECK(group.scheduler.statistics().preemptions == 0);
}

TEST_CASE("a prompt that the group of windows cuts is complete before a newer one that is short") {
  SchedulerLimits limits = with_group(8, 12);  // 3 blocks for each sequence; a chunk takes 9 at
                                               // most
  Group group(limits);
  group.scheduler.add(sequence(1, 100, 5));
  group.scheduler.add(sequence(2, 2, 5));
  group.step();
  CHECK(group.rows().size() == 1);
  while (!group.scheduler.idle()) {
    group.step();  // checks that no newer one decodes earlier
    if (!group.answers[2].empty()) CHECK(!group.answers[1].empty());
  }
  CHECK(group.answers[2].size() == 5);
}

// How many tokens of its prompt a second sequence finds cached, if others ran in between.
std::int64_t found_after(std::int64_t others, std::int64_t window_blocks) {
  Group group(with_group(8, window_blocks));
  group.scheduler.add(sequence(1, 40, 1));
  group.run();
  for (std::int64_t i = 0; i < others; ++i) {
    group.scheduler.add(sequence(static_cast<SequenceId>(10 + i), 40, 1));
    group.run();
  }
  Sequence again = sequence(1, 40, 4);
  again.id = 2;
  group.scheduler.add(again);
  const std::uint64_t before = group.scheduler.statistics().prefix.hit_tokens;
  group.run();
  CHECK(group.answers[2].size() == 4);
  return static_cast<std::int64_t>(group.scheduler.statistics().prefix.hit_tokens - before);
}

TEST_CASE("a prefix is found while the group of windows has what is before its end, not longer") {
  CHECK(found_after(0, 100) == 36);
  CHECK(found_after(8, 100) == 36);  // the blocks of 9 prompts fit
  CHECK(found_after(9, 100) == 36);  // the first blocks are evicted, those of the window are cached
  CHECK(found_after(12, 100) == 0);  // the other group still has all blocks
}

TEST_CASE("a prefix ends where the group of windows has its window") {
  Group group(with_group(8, 20));
  group.scheduler.add(sequence(1, 40, 1));
  group.run();
  // 15 new blocks take the ten free ones, and five cached ones, the prompt's last ones first.
  group.scheduler.add(sequence(2, 60, 1));
  group.run();
  Sequence longer = sequence(1, 41, 1);
  longer.id = 3;
  group.scheduler.add(longer);
  group.run();
  CHECK(group.scheduler.statistics().prefix.hit_tokens == 20);
  CHECK(group.answers[3].size() == 1);
}

TEST_CASE("preempted sequences go on with both groups' blocks, or are computed again") {
  for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
    SchedulerLimits limits = with_group(8, 40);
    limits.blocks = limits.resident_blocks = 30;
    limits.preemption = preemption;
    limits.prefix_caching = false;
    Group group(limits);
    for (SequenceId id = 1; id <= 3; ++id) group.scheduler.add(sequence(id, 20, 60));
    std::size_t out = 0, in = 0, window_out = 0, window_in = 0;
    group.run([&](const StepMessage& message) {
      out += message.swap_out.size();
      in += message.swap_in.size();
      window_out += message.windows.swap_out.size();
      window_in += message.windows.swap_in.size();
    });
    for (SequenceId id = 1; id <= 3; ++id) CHECK(group.answers[id].size() == 60);
    CHECK(group.scheduler.statistics().preemptions > 0);
    const bool swaps = preemption == Preemption::swap;
    CHECK((out > 0) == swaps);
    CHECK(out == in);
    CHECK((window_out > 0) == swaps);
    CHECK(window_out == window_in);
    CHECK(window_out <= out);
    if (swaps) CHECK(window_out < out);
  }
}

TEST_CASE("a group of windows without host blocks is computed again, with nothing left behind") {
  SchedulerLimits limits = with_group(8, 40);
  limits.blocks = limits.resident_blocks = 30;
  limits.window_group.host_blocks = 1;
  limits.prefix_caching = false;
  Group group(limits);
  for (SequenceId id = 1; id <= 3; ++id) group.scheduler.add(sequence(id, 20, 60));
  group.run([&](const StepMessage& message) { CHECK(message.swap_out.empty()); });
  for (SequenceId id = 1; id <= 3; ++id) CHECK(group.answers[id].size() == 60);
  CHECK(group.scheduler.statistics().recomputed_tokens > 0);
}

}  // namespace
}  // namespace nvllm::runtime
