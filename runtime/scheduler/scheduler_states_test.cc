// Linear attention: where snapshots of states are taken, which sequences resume from them, and how
// preemption treats states.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/scheduler/testing/scheduler_fixture.h"

namespace nvllm::runtime {
namespace {

// Blocks of 4 tokens, snapshots at least 8 tokens apart.
SchedulerLimits with_states(std::int64_t snapshots = 20) {
  SchedulerLimits limits = roomy();
  limits.states = {.kept = true, .snapshots = snapshots, .snapshot_tokens = 8, .host = 8};
  return limits;
}

Sequence sequence_of(SequenceId id, std::vector<std::int32_t> tokens, std::int32_t max_tokens = 4) {
  Sequence made = sequence(id, static_cast<std::int32_t>(tokens.size()), max_tokens);
  made.tokens = std::move(tokens);
  return made;
}

std::vector<std::int32_t> joined(std::vector<std::int32_t> tokens,
                                 const std::vector<std::int32_t>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

// Runs a sequence to its end. How many tokens it started with, and how many snapshots it saved.
struct Run {
  std::int64_t computed = 0, saved = 0;
  bool operator==(const Run&) const = default;
};
Run run(Group& group, const Sequence& sequence) {
  Run run;
  group.scheduler.add(sequence);
  group.run([&](const StepMessage& message) {
    for (const SlotStart& start : message.started) run.computed = start.computed;
    CHECK(message.states.restore.size() == (message.started.empty() || run.computed == 0 ? 0 : 1));
    run.saved += std::ssize(message.states.save);
  });
  return run;
}

TEST_CASE("states: a prompt's chunk ends behind its last full block, where a snapshot is taken") {
  Group group(with_states());
  group.scheduler.add(sequence(1, 30));
  CHECK(group.step().states.save.size() == 1);
  CHECK(group.rows() == Rows{{0, 28}});
  CHECK(group.step().states.save.empty());
  CHECK(group.rows() == Rows{{0, 2}});
}

TEST_CASE("states: an equal prompt begins there; one with other tokens, or a short one, does not") {
  Group group(with_states());
  const std::vector<std::int32_t> tokens = sequence(1, 30).tokens;
  CHECK(run(group, sequence_of(1, tokens)) == Run{0, 1});
  CHECK(run(group, sequence_of(2, tokens)) == Run{28, 0});
  CHECK(run(group, sequence(3, 30, 4)) == Run{0, 1});
  CHECK(run(group, sequence_of(4, {tokens.begin(), tokens.begin() + 8})) == Run{0, 0});
  CHECK(run(group, sequence_of(5, {tokens.begin(), tokens.begin() + 8})) == Run{0, 0});
}

TEST_CASE("states: the second prompt with a beginning leaves a snapshot behind it for all others") {
  Group group(with_states());
  const std::vector<std::int32_t> system = sequence(9, 21).tokens;
  CHECK(run(group, sequence_of(1, joined(system, sequence(1, 10).tokens))) == Run{0, 1});
  CHECK(run(group, sequence_of(2, joined(system, sequence(2, 10).tokens))) == Run{0, 2});
  CHECK(run(group, sequence_of(3, joined(system, sequence(3, 10).tokens))) == Run{20, 1});
  CHECK(run(group, sequence_of(4, joined(system, sequence(4, 10).tokens))) == Run{20, 1});
}

TEST_CASE("states: of equal prompts in one step one is cut, and the snapshot is for later steps") {
  Group group(with_states());
  const std::vector<std::int32_t> tokens = sequence(1, 30).tokens;
  group.scheduler.add(sequence_of(1, tokens));
  group.scheduler.add(sequence_of(2, tokens));
  const StepMessage message = group.step();
  CHECK(group.rows() == Rows{{0, 28}, {1, 30}});
  CHECK(message.states.save.size() == 1);
  CHECK(message.states.restore.empty());
  group.scheduler.add(sequence_of(3, tokens));
  CHECK(group.step().states.restore.size() == 1);
  group.run();
}

TEST_CASE(
    "states: an answer's newest snapshot replaces the one before, and the next turn finds it") {
  Group group(with_states());
  const std::vector<std::int32_t> prompt = sequence(1, 5).tokens;
  // After 16, 32 and 48 tokens; after 64 the sequence ends.
  CHECK(run(group, sequence_of(1, prompt, 60)) == Run{0, 3});
  const std::vector<std::int32_t> all = joined(prompt, group.answers[1]);
  const std::vector<std::int32_t> next = sequence(2, 5).tokens;
  CHECK(run(group, sequence_of(2, joined(all, next))).computed == 48);
  const std::vector<std::int32_t> part(all.begin(), all.begin() + 40);
  CHECK(run(group, sequence_of(3, joined(part, next))).computed == 0);
}

TEST_CASE("states: the least recently used snapshot makes room") {
  Group group(with_states(2));
  const std::vector<std::int32_t> first = sequence(1, 30).tokens, second = sequence(2, 30).tokens;
  run(group, sequence_of(1, first));
  run(group, sequence_of(2, second));
  CHECK(run(group, sequence_of(3, first)).computed == 28);
  run(group, sequence(4, 30, 4));
  CHECK(run(group, sequence_of(5, first)).computed == 28);
  CHECK(run(group, sequence_of(6, second)).computed == 0);
}

TEST_CASE("states: without places for snapshots no prefix is shared") {
  Group group(with_states(0));
  const std::vector<std::int32_t> tokens = sequence(1, 30).tokens;
  CHECK(run(group, sequence_of(1, tokens)) == Run{0, 0});
  CHECK(run(group, sequence_of(2, tokens)) == Run{0, 0});
}

// Two sequences that do not both fit completely in the cache.
SchedulerStatistics preempted(std::int64_t host_states) {
  SchedulerLimits limits = with_states();
  limits.blocks = 12;
  limits.states.host = host_states;
  Group group(limits);
  group.scheduler.add(sequence(1, 10, 30));
  group.scheduler.add(sequence(2, 10, 30));
  group.run([](const StepMessage& message) {
    CHECK(message.states.swap_out.empty() == message.swap_out.empty());
    CHECK(message.states.swap_in.empty() == message.swap_in.empty());
  });
  CHECK(group.answers[1].size() == 30);
  CHECK(group.answers[2].size() == 30);
  return group.scheduler.statistics();
}

TEST_CASE("states: a sequence that is preempted takes them to the host, or is computed again") {
  const SchedulerStatistics swapped = preempted(1);
  CHECK(swapped.preemptions == 1);
  CHECK(swapped.swapped_states == 1);
  CHECK(swapped.recomputed_tokens == 0);
  const SchedulerStatistics recomputed = preempted(0);
  CHECK(recomputed.swapped_states == 0);
  CHECK(recomputed.swapped_blocks == 0);
  CHECK(recomputed.recomputed_tokens > 0);
}

}  // namespace
}  // namespace nvllm::runtime
