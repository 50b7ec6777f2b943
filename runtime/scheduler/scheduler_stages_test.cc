// Steps in a pipeline: the sequences in them, and how many are in flight.
#include <doctest/doctest.h>

#include <set>

#include "runtime/scheduler/testing/scheduler_fixture.h"

namespace nvllm::runtime {
namespace {

SchedulerLimits staged(std::int64_t stages) {
  SchedulerLimits limits = roomy();
  limits.stages = stages;
  return limits;
}

std::set<std::uint32_t> slots(const Rows& rows) {
  std::set<std::uint32_t> slots;
  for (const auto& [slot, count] : rows) slots.insert(slot);
  return slots;
}

// Starts `count` decoding sequences, with nothing in flight.
void start_decoding(Group& group, std::int64_t count) {
  for (std::int64_t id = 1; id <= count; ++id) {
    group.scheduler.add(sequence(static_cast<SequenceId>(id), 3));
  }
  while (group.answers.size() < static_cast<std::size_t>(count)) group.step();
}

TEST_CASE("a sequence decodes in one step in flight only") {
  Group group(staged(2));
  group.scheduler.add(sequence(1, 5));
  group.schedule();
  CHECK_FALSE(group.scheduler.schedule().has_value());
  group.complete();
  group.schedule();
  CHECK(group.rows() == Rows{{0, 1}});
  CHECK_FALSE(group.scheduler.schedule().has_value());
}

TEST_CASE("sequences that decode are divided among the steps in flight") {
  for (const auto& [sequences, stages, first, second] :
       {std::tuple{5, 2, 3, 2}, {4, 2, 2, 2}, {2, 2, 1, 1}, {8, 3, 3, 3}}) {
    Group group(staged(stages));
    start_decoding(group, sequences);
    group.schedule();
    const std::set<std::uint32_t> before = slots(group.rows());
    group.schedule();
    std::set<std::uint32_t> both = slots(group.rows());
    CHECK(before.size() == static_cast<std::size_t>(first));
    CHECK(both.size() == static_cast<std::size_t>(second));
    both.insert(before.begin(), before.end());
    CHECK(both.size() == static_cast<std::size_t>(first + second));
  }
}

TEST_CASE("with as many steps in flight as stages, each sequence decodes in every round") {
  Group group(staged(3));
  start_decoding(group, 7);
  group.schedule();
  group.schedule();
  std::map<std::uint32_t, int> times;
  for (int i = 0; i < 12; ++i) {  // four rounds
    group.schedule();
    for (const auto& [slot, rows] : group.rows()) ++times[slot];
    group.complete();
  }
  CHECK(times.size() == 7);
  for (const auto& [slot, count] : times) CHECK(count >= 3);
}

TEST_CASE("prompts that come together go into different steps") {
  Group group(staged(2));
  group.scheduler.add(sequence(1, 5));
  group.scheduler.add(sequence(2, 5));
  CHECK(group.schedule().started.size() == 1);
  CHECK(group.schedule().started.size() == 1);
}

TEST_CASE("a prompt's chunks follow each other without a result") {
  Group group(staged(3));
  group.scheduler.add(sequence(1, 150));  // 64 rows each
  group.schedule();
  group.schedule();
  group.schedule();
  CHECK(group.rows() == Rows{{0, 22}});
  CHECK_FALSE(group.scheduler.schedule().has_value());
}

TEST_CASE("the ranks are sent the token that a sequence's next row needs, once") {
  Group group(staged(2));
  group.scheduler.add(sequence(1, 5, 3));
  CHECK(group.step().tokens.empty());
  const StepMessage next = group.step();
  REQUIRE(next.tokens.size() == 1);
  CHECK(next.tokens.front().slot == 0);
  CHECK(next.tokens.front().token == group.answers[1].front());
  CHECK(group.step().tokens.size() == 1);
  CHECK(group.scheduler.idle());
}

TEST_CASE("without stages no tokens are sent: the devices have them") {
  Group group(roomy());
  group.scheduler.add(sequence(1, 5, 3));
  group.run([](const StepMessage& message) { CHECK(message.tokens.empty()); });
}

}  // namespace
}  // namespace nvllm::runtime
