// The scheduler's guarantees, one per test: preemption, steps ahead, aborts, messages.
// scheduler_policy_test covers the order of sequences, scheduler_simulation_test their
// combinations.
#include "runtime/scheduler/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "ipc/archive.h"
#include "runtime/scheduler/testing/scheduler_fixture.h"

namespace nvllm::runtime {
namespace {

std::size_t bytes_of(const StepMessage& message) {
  ipc::ArchiveWriter out;
  out(message);
  return out.bytes().size();
}

TEST_CASE("swapped out and in: all but the newest token need not be computed again") {
  SchedulerLimits limits = roomy();
  limits.blocks = 12;
  limits.prefix_caching = false;
  Group group(limits);
  group.scheduler.add(sequence(1, 12, 32));
  group.scheduler.add(sequence(2, 12, 32));
  std::vector<kvcache::BlockCopy> out, in;
  group.run([&](const StepMessage& message) {
    out.insert(out.end(), message.swap_out.begin(), message.swap_out.end());
    in.insert(in.end(), message.swap_in.begin(), message.swap_in.end());
    for (const SlotStart& start : message.started)
      if (start.tokens.size() > 12)
        CHECK(start.computed + 1 == static_cast<std::int32_t>(start.tokens.size()));
  });
  CHECK(!out.empty());
  CHECK(out.size() == in.size());
  CHECK(group.scheduler.statistics().swapped_blocks == out.size());
  CHECK(group.scheduler.statistics().recomputed_tokens == 0);
}

TEST_CASE("blocks that are still cached on the device are not copied back") {
  SchedulerLimits limits = roomy();
  limits.blocks = 13;
  Group group(limits);
  group.scheduler.add(sequence(1, 12, 28));
  group.scheduler.add(sequence(2, 12, 28));
  std::size_t out = 0, in = 0;
  group.run([&](const StepMessage& message) {
    out += message.swap_out.size();
    in += message.swap_in.size();
  });
  CHECK(out > 0);
  CHECK(in < out);
}

TEST_CASE("a swap space that is too small: computed again instead") {
  SchedulerLimits limits = roomy();
  limits.blocks = 12;
  limits.host_blocks = 2;
  limits.prefix_caching = false;
  Group group(limits);
  group.scheduler.add(sequence(1, 12, 32));
  group.scheduler.add(sequence(2, 12, 32));
  group.run();
  CHECK(group.scheduler.statistics().swapped_blocks == 0);
  CHECK(group.scheduler.statistics().recomputed_tokens >= 12);
  CHECK(group.answers[2].size() == 32);
}

TEST_CASE("one step ahead: a stop that is found late costs one row, and its token is dropped") {
  Group alone(roomy());
  alone.scheduler.add(sequence(1, 5, 3));
  alone.run();
  const std::int32_t second = alone.answers[1].at(1);
  REQUIRE(alone.answers[1].at(0) != second);

  Group group(roomy());
  Sequence stopping = sequence(1, 5, 10);
  stopping.stop_tokens = {second};
  group.scheduler.add(stopping);
  group.schedule();
  group.schedule();
  group.complete();
  group.schedule();  // although the second token ends it
  CHECK(group.complete().at(0).finish == FinishReason::stop);
  CHECK(group.scheduler.idle());
  CHECK(group.complete().empty());
  CHECK(group.answers[1].size() == 2);
}

TEST_CASE("no token: the sequence ends without one, and the others go on") {
  for (const std::int32_t max_tokens : {1, 10}) {
    Group group(roomy());
    group.scheduler.add(sequence(1, 5, max_tokens));
    group.scheduler.add(sequence(2, 5, 10));
    group.schedule();
    group.schedule();  // includes the sequence without a token, unless it has its length
    const auto outputs = group.complete([](StepResult& result) {
      for (StepResult::Token& token : result.tokens) {
        if (token.slot == 0) token.token = -1;
      }
    });
    REQUIRE(outputs.size() == 2);
    CHECK(outputs[0].no_token);
    CHECK(outputs[0].finish == FinishReason::abort);
    CHECK(outputs[0].tokens.empty());
    CHECK_FALSE(outputs[1].no_token);
    group.complete();
    group.run();
    CHECK(group.answers[1].empty());
    CHECK(group.answers[2].size() == 10);
  }
}

TEST_CASE("one step ahead: who is at its length gives its slot up before the last token is known") {
  SchedulerLimits limits = roomy();
  limits.max_num_seqs = 1;
  Group group(limits);
  group.scheduler.add(sequence(1, 5, 2));
  group.scheduler.add(sequence(2, 5, 2));
  group.schedule();
  group.schedule();
  const StepMessage third = group.schedule();
  CHECK(third.ended == std::vector<std::uint32_t>{0});
  CHECK(third.started.at(0).slot == 0);
  CHECK(group.complete().at(0).id == 1);
  CHECK(group.complete().at(0).finish == FinishReason::length);
  const auto progress = group.complete();
  CHECK(progress.at(0).id == 2);
}

TEST_CASE(
    "nothing is scheduled beyond the length, so there may be nothing until a result is known") {
  Group group(roomy());
  group.scheduler.add(sequence(1, 5, 1));
  group.schedule();
  CHECK(!group.scheduler.schedule().has_value());
  CHECK(group.complete().at(0).finish == FinishReason::length);
  CHECK(group.scheduler.idle());
}

TEST_CASE("aborted with rows in flight: the slot's next sequence does not get their tokens") {
  SchedulerLimits limits = roomy();
  limits.max_num_seqs = 1;
  Group group(limits);
  group.scheduler.add(sequence(1, 5, 9));
  group.schedule();
  CHECK(group.scheduler.abort(1));
  CHECK(!group.scheduler.abort(1));
  group.scheduler.add(sequence(2, 6, 9));
  const StepMessage next = group.schedule();
  CHECK(next.ended == std::vector<std::uint32_t>{0});
  CHECK(next.started.at(0).slot == 0);
  CHECK(group.complete().empty());
  CHECK(group.complete().at(0).id == 2);
}

TEST_CASE("aborted while it waits, or while its blocks are on the host") {
  SchedulerLimits limits = roomy();
  limits.blocks = 12;
  Group group(limits);
  group.scheduler.add(sequence(1, 12, 32));
  group.scheduler.add(sequence(2, 12, 32));
  while (group.step().swap_out.empty()) continue;
  group.scheduler.add(sequence(3, 40, 2));
  CHECK(group.scheduler.abort(3));
  CHECK(group.scheduler.abort(2));
  group.scheduler.check_invariants();
  group.run();
  CHECK(group.answers[1].size() == 32);
  CHECK(group.scheduler.statistics().free_blocks == 12);
}

TEST_CASE("an id may come again when its sequence is over, though rows of it are in flight") {
  Group group(roomy());
  group.scheduler.add(sequence(1, 5, 9));
  group.schedule();
  group.scheduler.abort(1);
  group.scheduler.add(sequence(1, 7, 2));
  group.schedule();
  CHECK(group.complete().empty());
  CHECK(group.complete().at(0).id == 1);
  group.run();
  CHECK(group.answers[1].size() == 2);
}

TEST_CASE("blocks before the window are free while a sequence goes on") {
  SchedulerLimits limits = roomy();  // blocks of 4 tokens
  limits.window = 10;
  limits.resident_blocks = limits.blocks;
  limits.max_num_batched_tokens = 16;
  Group group(limits);
  group.scheduler.add(sequence(1, 40, 60));
  const auto used = [&] {
    const SchedulerStatistics now = group.scheduler.statistics();
    return now.total_blocks - now.free_blocks;
  };
  group.step();
  CHECK(used() == 10);  // rows 0 to 15: no block is before their windows
  group.step();
  CHECK(used() == 9);  // row 16 attends to token 7 and later ones
  group.step();
  CHECK(used() == 5);  // row 32, from token 23 on
  while (!group.scheduler.idle()) {
    group.step();
    CHECK(used() <= 5);
  }
  CHECK(group.answers[1].size() == 60);
  CHECK(used() == 0);
}

TEST_CASE("with windows many long answers fit that would preempt each other without") {
  for (const std::int64_t window : {0, 8}) {
    CAPTURE(window);
    SchedulerLimits limits = roomy();
    limits.window = window;
    limits.blocks = limits.resident_blocks = 40;
    Group group(limits);
    for (SequenceId id = 1; id <= 6; ++id) group.scheduler.add(sequence(id, 8, 120));
    group.run();
    for (SequenceId id = 1; id <= 6; ++id) CHECK(group.answers[id].size() == 120);
    CHECK((group.scheduler.statistics().preemptions == 0) == (window > 0));
  }
}

TEST_CASE("what is swapped out without its first blocks goes on without them, and shares none") {
  SchedulerLimits limits = roomy();
  limits.window = 20;
  limits.blocks = limits.resident_blocks = 16;
  Group group(limits);
  // The third is preempted when the first two have grown, and leaves cached blocks behind.
  group.scheduler.add(sequence(1, 4, 40));
  group.scheduler.add(sequence(2, 4, 40));
  group.scheduler.add(sequence(3, 30, 30));
  std::size_t out = 0, in = 0;
  group.run([&](const StepMessage& message) {
    out += message.swap_out.size();
    in += message.swap_in.size();
  });
  const SchedulerStatistics end = group.scheduler.statistics();
  CHECK(end.preemptions > 0);
  CHECK(end.recomputed_tokens == 0);
  CHECK(out == 6);  // of 12 blocks
  CHECK(in == out);
  CHECK(group.answers[1].size() == 40);
  CHECK(group.answers[3].size() == 30);
  CHECK(end.free_blocks == 16);
}

TEST_CASE("blocks are kept free for those who run and may need one more, and for nobody else") {
  SchedulerLimits limits = roomy();
  limits.blocks = 4;
  limits.block_size = 16;
  Group fits(limits);
  // One block each suffices, because the last token is not stored.
  for (SequenceId id = 1; id <= 4; ++id) fits.scheduler.add(sequence(id, 8, id % 2 == 0 ? 8 : 9));
  fits.step();
  CHECK(fits.rows().size() == 4);
  fits.run();
  CHECK(fits.scheduler.statistics().preemptions == 0);
  Group grows(limits);
  for (SequenceId id = 1; id <= 4; ++id) grows.scheduler.add(sequence(id, 8, 10));
  grows.step();
  CHECK(grows.rows().size() == 2);
  grows.run();
  CHECK(grows.scheduler.statistics().preemptions == 0);
}

TEST_CASE(
    "what a message says of the group of windows travels, and nothing where it says nothing") {
  StepMessage message;
  message.number = 7;
  message.blocks = {{.slot = 1, .block = 2}};
  message.same_rows = true;
  const auto copy_of = [](const StepMessage& original) {
    ipc::ArchiveWriter out;
    out(original);
    ipc::ArchiveReader in(out.bytes());
    return in.get<StepMessage>();
  };
  StepMessage copy = copy_of(message);
  CHECK(copy.same_rows);
  CHECK(copy.windows.empty());
  const std::size_t without = bytes_of(message);
  message.windows.blocks = {{.slot = 3, .block = 4}};
  message.windows.swap_in = {{.from = 5, .to = 6}};
  CHECK(bytes_of(message) == without + 3 * sizeof(std::uint64_t) + 2 * sizeof(BlockAppend));
  message.same_rows = false;
  copy = copy_of(message);
  CHECK(!copy.same_rows);
  CHECK(copy.number == 7);
  REQUIRE(copy.windows.blocks.size() == 1);
  CHECK(copy.windows.blocks[0].block == 4);
  REQUIRE(copy.windows.swap_in.size() == 1);
  CHECK(copy.windows.swap_in[0].to == 6);
  CHECK(copy.windows.swap_out.empty());
}

TEST_CASE("256 sequences that decode: a step is at most 4 KiB, and usually a few hundred bytes") {
  SchedulerLimits limits = roomy();
  limits.max_num_seqs = 256;
  limits.max_num_batched_tokens = 8192;
  limits.max_logit_rows = 256;
  limits.block_size = 16;
  limits.blocks = 256 * 64;
  Group group(limits);
  for (SequenceId id = 1; id <= 256; ++id) {
    const auto place = static_cast<std::int32_t>(id);
    group.scheduler.add(sequence(id, 20 + place % 37, 64 + place % 50));
  }
  std::size_t max = 0, all = 0, steps = 0;
  group.run([&](const StepMessage& message) {
    if (!message.started.empty()) return;
    const std::size_t bytes = bytes_of(message);
    max = std::max(max, bytes);
    all += bytes;
    ++steps;
  });
  CHECK(steps > 100);
  CHECK(max <= 4096);
  CHECK(all / steps <= 400);
}

TEST_CASE("statistics say who waits, who runs and what it cost") {
  SchedulerLimits limits = roomy();
  limits.max_num_seqs = 1;
  Group group(limits);
  group.scheduler.add(sequence(1, 6, 3));
  group.scheduler.add(sequence(2, 6, 3));
  group.step();
  SchedulerStatistics now = group.scheduler.statistics();
  CHECK(now.steps == 1);
  CHECK(now.rows == 6);
  CHECK(now.running == 1);
  CHECK(now.waiting == 1);
  CHECK(now.total_blocks - now.free_blocks == 2);
  group.run();
  now = group.scheduler.statistics();
  CHECK(now.rows == 2 * (6 + 2));
  CHECK(now.running + now.waiting == 0);
  CHECK(now.free_blocks == now.total_blocks);
}

TEST_CASE("a host block that is given back is taken for the next message only") {
  HostBlockPool host(2);
  std::vector<kvcache::BlockId> blocks = {host.allocate(), host.allocate()};
  CHECK(blocks == std::vector<kvcache::BlockId>{0, 1});
  host.free(blocks);
  CHECK(blocks.empty());
  CHECK(host.count() == 0);
  host.end_message();
  CHECK(host.count() == 2);
}

}  // namespace
}  // namespace nvllm::runtime
