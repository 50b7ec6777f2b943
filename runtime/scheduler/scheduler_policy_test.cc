// The order of sequences, and the contents of a step.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/scheduler/testing/scheduler_fixture.h"

namespace nvllm::runtime {
namespace {

std::string refusal(const SchedulerLimits& limits, const Sequence& sequence) {
  Scheduler scheduler(limits);
  try {
    scheduler.add(sequence);
  } catch (const Error& error) {
    CHECK(scheduler.idle());
    return error.what();
  }
  return "";
}

TEST_CASE("what can never run is refused with the reason and the fix") {
  SchedulerLimits limits = roomy();
  CHECK(refusal(limits, sequence(1, 4095)) ==
        "prompt of 4095 tokens: the whole KV cache holds 4000 (1000 blocks of 4), which leaves no "
        "room for an answer; raise --gpu-memory-utilization or --kv-cache-memory-bytes, or pass a "
        "shorter prompt");
  CHECK(refusal(limits, sequence(1, 5000)) ==
        "prompt of 5000 tokens: max_model_len is 4096, which leaves no room for an answer; pass "
        "--max-model-len 5001 or more, or a shorter prompt");
  CHECK(refusal(limits, sequence(1, 0)) ==
        "prompt of 0 tokens: there is nothing to go on from; pass at least one");
  CHECK(refusal(limits, sequence(1, 3, 0)) ==
        "max_tokens 0: an answer has at least one token; pass 1 or more");
  CHECK(refusal(limits, sequence(1, 3999)) == "");
}

TEST_CASE("a prompt of max_model_len leaves no room for an answer, one token less leaves one") {
  SchedulerLimits limits = roomy();
  limits.blocks = 2000;
  CHECK(refusal(limits, sequence(1, 4096)) ==
        "prompt of 4096 tokens: max_model_len is 4096, which leaves no room for an answer; pass "
        "--max-model-len 4097 or more, or a shorter prompt");
  CHECK(refusal(limits, sequence(1, 4095)) == "");
}

TEST_CASE("an answer is as long as there is room for") {
  SchedulerLimits limits = roomy();
  SUBCASE("in max_model_len") {
    limits.max_model_len = 20;
  }
  SUBCASE("in the cache") {
    limits.blocks = 5;
  }
  Group group(limits);
  group.scheduler.add(sequence(1, 15, 1000));
  group.run();
  CHECK(group.answers[1].size() == 5);
  CHECK(group.finished[1] == FinishReason::length);
}

TEST_CASE("mixed: who decodes has a row in every step, prefill has the rest, chunk by chunk") {
  Group group(roomy());
  group.scheduler.add(sequence(1, 3, 100));
  group.step();
  group.scheduler.add(sequence(2, 150));
  const auto first = group.step();
  CHECK(first.started.at(0).slot == 1);
  CHECK(group.rows() == Rows{{0, 1}, {1, 63}});
  group.step();
  CHECK(group.rows() == Rows{{0, 1}, {1, 63}});
  group.step();
  CHECK(group.rows() == Rows{{0, 1}, {1, 24}});
  group.step();
  CHECK(group.rows() == Rows{{0, 1}, {1, 1}});
}

TEST_CASE("prefill first: whole prompts as far as they fit, and nobody decodes meanwhile") {
  SchedulerLimits limits = roomy();
  limits.scheduling = Scheduling::prefill_first;
  Group group(limits);
  group.scheduler.add(sequence(1, 3));
  group.step();
  for (SequenceId id = 2; id <= 4; ++id) group.scheduler.add(sequence(id, 30));
  group.step();
  CHECK(group.rows() == Rows{{1, 30}, {2, 30}});
  group.step();
  CHECK(group.rows() == Rows{{3, 30}});
  group.step();
  CHECK(group.rows() == Rows{{0, 1}, {1, 1}, {2, 1}, {3, 1}});
}

TEST_CASE("prefill first: a prompt longer than a step goes in chunks") {
  SchedulerLimits limits = roomy();
  limits.scheduling = Scheduling::prefill_first;
  Group group(limits);
  group.scheduler.add(sequence(1, 100));
  group.scheduler.add(sequence(2, 20));
  group.step();
  CHECK(group.rows() == Rows{{0, 64}});
  group.step();
  CHECK(group.rows() == Rows{{0, 36}, {1, 20}});
}

TEST_CASE("prefill first: prompts that keep coming do not stop who decodes") {
  SchedulerLimits limits = roomy();
  limits.scheduling = Scheduling::prefill_first;
  limits.max_num_seqs = 2;
  Group group(limits);
  group.scheduler.add(sequence(1, 3, 20));
  SequenceId next = 2;
  for (int steps = 0; !group.finished.contains(1); ++steps) {
    REQUIRE(steps < 20 * 20);
    group.scheduler.add(sequence(next++, 60, 1));
    group.step();
  }
}

TEST_CASE("nobody is overtaken: small requests wait behind a large one that does not fit yet") {
  SchedulerLimits limits = roomy();
  limits.blocks = 20;
  Group group(limits);
  group.scheduler.add(sequence(1, 40, 20));
  group.step();
  group.scheduler.add(sequence(2, 60, 4));
  group.scheduler.add(sequence(3, 2, 1));
  std::vector<std::int32_t> started;
  group.run([&](const StepMessage& message) {
    for (const SlotStart& start : message.started) started.push_back(start.tokens.at(0) / 10'000);
  });
  CHECK(started == std::vector<std::int32_t>{2, 3});
}

TEST_CASE("who comes in leaves a block for everybody who runs, so that it need not go at once") {
  SchedulerLimits limits = roomy();
  limits.blocks = 11;
  Group group(limits);
  group.scheduler.add(sequence(1, 12, 6));
  group.step();
  SUBCASE("just enough") {
    group.scheduler.add(sequence(2, 24, 1));
    CHECK(group.step().started.size() == 1);
  }
  SUBCASE("one too few") {
    group.scheduler.add(sequence(2, 28, 1));
    CHECK(group.step().started.empty());
    group.run();
    CHECK(group.scheduler.statistics().preemptions == 0);
  }
}

TEST_CASE("the newest gives way, and comes back before anybody newer starts") {
  SchedulerLimits limits = roomy();
  limits.blocks = 12;
  SUBCASE("by swap") {
    limits.preemption = Preemption::swap;
  }
  SUBCASE("by recompute") {
    limits.preemption = Preemption::recompute;
  }
  Group group(limits);
  group.scheduler.add(sequence(1, 12, 32));
  group.scheduler.add(sequence(2, 12, 32));
  group.step();
  group.scheduler.add(sequence(3, 4, 1));
  std::vector<std::int32_t> started;
  std::vector<SequenceId> preempted;
  while (!group.scheduler.idle()) {
    for (const SlotStart& start : group.schedule().started)
      started.push_back(start.tokens.at(0) / 10'000);
    for (const SequenceOutput& output : group.complete())
      if (output.preemptions > 0) preempted.push_back(output.id);
  }
  CHECK(started.front() == 3);  // fits beside them
  CHECK(started.back() == 2);
  CHECK(!preempted.empty());
  CHECK(std::count(preempted.begin(), preempted.end(), 1) == 0);
  CHECK(group.answers[2].size() == 32);
}

TEST_CASE("answers to one prompt share its blocks from their first step on") {
  Group group(roomy());
  for (SequenceId id = 1; id <= 3; ++id) {
    Sequence answer = sequence(7, 18, 4);
    answer.id = id;
    group.scheduler.add(answer);
  }
  group.schedule();
  CHECK(group.rows() == Rows{{0, 18}, {1, 2}, {2, 2}});
  for (const SequenceOutput& output : group.complete())
    CHECK(output.cached_tokens == (output.id == 1 ? 0 : 16));
  const SchedulerStatistics now = group.scheduler.statistics();
  CHECK(now.prefix.hit_tokens == 32);
  CHECK(now.total_blocks - now.free_blocks == 4 + 3);  // four shared ones, and one of their own
                                                       // each
}

TEST_CASE("what one sequence samples others find, as soon as it fills a block") {
  Group group(roomy());
  group.scheduler.add(sequence(1, 6));
  for (int steps = 0; steps < 3; ++steps) group.step();  // 8 tokens are computed

  Sequence follower = sequence(1, 6);
  follower.id = 2;
  follower.tokens.insert(follower.tokens.end(), group.answers[1].begin(), group.answers[1].end());
  group.scheduler.add(follower);
  group.schedule();
  for (const SequenceOutput& output : group.complete())
    CHECK(output.cached_tokens == (output.id == 1 ? 0 : 8));
}

TEST_CASE("logprobs of a prompt: every row is computed, no more of them in a step than asked for") {
  SchedulerLimits limits = roomy();
  limits.max_logit_rows = 10;
  Group group(limits);
  group.scheduler.add(sequence(1, 24, 1));
  group.run();
  Sequence with_logprobs = sequence(1, 24, 2);
  with_logprobs.id = 2;
  with_logprobs.prompt_logprobs = 0;
  group.scheduler.add(with_logprobs);
  std::size_t logprobs = 0;
  std::vector<std::uint32_t> rows;
  while (!group.scheduler.idle()) {
    group.schedule();
    rows.push_back(group.rows().at(0));
    for (const SequenceOutput& output : group.complete()) {
      logprobs += output.prompt_logprobs.size();
      CHECK(output.cached_tokens == 0);
    }
  }
  CHECK(rows == std::vector<std::uint32_t>{10, 10, 4, 1});
  CHECK(logprobs == 23);
}

TEST_CASE("prompts are cut to the rows that a step may have of them, and decodes are not") {
  for (const Scheduling scheduling : {Scheduling::mixed, Scheduling::prefill_first}) {
    SchedulerLimits limits = roomy();
    limits.scheduling = scheduling;
    Group group(limits);
    for (SequenceId id = 1; id <= 3; ++id) group.scheduler.add(sequence(id, 4));
    group.step();
    group.scheduler.set_prefill_rows(10);
    group.scheduler.add(sequence(4, 25, 1));
    std::vector<std::uint32_t> prompt_rows;
    while (prompt_rows.size() < 3) {
      group.schedule();
      for (const auto& [slot, rows] : group.rows()) {
        if (rows > 1) prompt_rows.push_back(rows);
      }
      group.complete();
    }
    std::uint32_t all = 0;
    for (const std::uint32_t rows : prompt_rows) {
      CHECK(rows <= 10);
      all += rows;
    }
    CHECK(all == 25);
    group.run();
    CHECK(group.scheduler.statistics().completed_rows == group.scheduler.statistics().rows);
  }
}

}  // namespace
}  // namespace nvllm::runtime
