// What the scheduler promises, one promise at a time. That everything fits together is
// scheduler_simulation_test's.
#include "runtime/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "ipc/archive.h"
#include "runtime/mock_rank.h"

namespace nvllm::runtime {
namespace {

SchedulerLimits roomy() {
  return {.max_model_len = 4096,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 64,
          .max_logit_rows = 64,
          .blocks = 1000,
          .block_size = 4,
          .host_blocks = 100,
          .prefix_caching = true,
          .scheduling = Scheduling::mixed,
          .preemption = Preemption::swap};
}

// A prompt that shares no prefix with those of other ids.
NewSequence sequence(SequenceId id, std::int32_t prompt, std::int32_t max_tokens = 16) {
  NewSequence sequence;
  sequence.id = id;
  sequence.tokens.resize(static_cast<std::size_t>(prompt));
  std::iota(sequence.tokens.begin(), sequence.tokens.end(), static_cast<std::int32_t>(id) * 10'000);
  sequence.max_tokens = max_tokens;
  sequence.rules.prompt_length = prompt;
  return sequence;
}

// A scheduler and a rank that follows it.
class Group {
 public:
  explicit Group(const SchedulerLimits& limits) : scheduler(limits), rank_(limits, {}) {}

  // The next step; there has to be one.
  StepMessage schedule() {
    const auto message = scheduler.schedule();
    REQUIRE(message.has_value());
    results_.push_back(rank_.step(*message));
    scheduler.check_invariants();
    return *message;
  }
  std::vector<Progress> complete() {
    REQUIRE(!results_.empty());
    const StepResult result = results_.front();
    results_.pop_front();
    auto progress = scheduler.complete(result);
    scheduler.check_invariants();
    for (const Progress& news : progress) {
      auto& tokens = answers[news.id];
      tokens.insert(tokens.end(), news.tokens.begin(), news.tokens.end());
      if (news.finish != FinishReason::none) finished[news.id] = news.finish;
    }
    return progress;
  }
  StepMessage step() {
    const StepMessage message = schedule();
    complete();
    return message;
  }
  // To the end; `each`: of every message.
  void run(const std::function<void(const StepMessage&)>& each = [](const StepMessage&) {}) {
    while (!scheduler.idle()) each(step());
  }
  // Rows of the last step, by slot.
  std::map<std::uint32_t, std::uint32_t> rows() const {
    std::map<std::uint32_t, std::uint32_t> rows;
    for (const StepRows& row : rank_.rows()) rows[row.slot] = row.rows;
    return rows;
  }

  Scheduler scheduler;
  std::map<SequenceId, std::vector<std::int32_t>> answers;
  std::map<SequenceId, FinishReason> finished;

 private:
  MockRank rank_;
  std::deque<StepResult> results_;
};

using Rows = std::map<std::uint32_t, std::uint32_t>;

std::string refusal(const SchedulerLimits& limits, const NewSequence& sequence) {
  Scheduler scheduler(limits);
  try {
    scheduler.add(sequence);
  } catch (const Error& error) {
    CHECK(scheduler.idle());
    return error.what();
  }
  return "";
}

std::size_t bytes_of(const StepMessage& message) {
  ipc::ArchiveWriter out;
  out(message);
  return out.bytes().size();
}

TEST_CASE("what can never run is refused with the reason and the mend") {
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
    for (const Progress& news : group.complete())
      if (news.preemptions > 0) preempted.push_back(news.id);
  }
  CHECK(started.front() == 3);  // fits beside them
  CHECK(started.back() == 2);
  CHECK(!preempted.empty());
  CHECK(std::count(preempted.begin(), preempted.end(), 1) == 0);
  CHECK(group.answers[2].size() == 32);
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

TEST_CASE("answers to one prompt share its blocks from their first step on") {
  Group group(roomy());
  for (SequenceId id = 1; id <= 3; ++id) {
    NewSequence answer = sequence(7, 18, 4);
    answer.id = id;
    group.scheduler.add(answer);
  }
  group.schedule();
  CHECK(group.rows() == Rows{{0, 18}, {1, 2}, {2, 2}});
  for (const Progress& news : group.complete())
    CHECK(news.cached_tokens == (news.id == 1 ? 0 : 16));
  const SchedulerStatistics now = group.scheduler.statistics();
  CHECK(now.prefix.found_tokens == 32);
  CHECK(now.total_blocks - now.free_blocks == 4 + 3);  // four shared ones, and each one's last
}

TEST_CASE("logprobs of a prompt: every row is computed, no more of them in a step than asked for") {
  SchedulerLimits limits = roomy();
  limits.max_logit_rows = 10;
  Group group(limits);
  group.scheduler.add(sequence(1, 24, 1));
  group.run();
  NewSequence scored = sequence(1, 24, 2);
  scored.id = 2;
  scored.prompt_logprobs = 0;
  group.scheduler.add(scored);
  std::size_t logprobs = 0;
  std::vector<std::uint32_t> rows;
  while (!group.scheduler.idle()) {
    group.schedule();
    rows.push_back(group.rows().at(0));
    for (const Progress& news : group.complete()) {
      logprobs += news.prompt_logprobs.size();
      CHECK(news.cached_tokens == 0);
    }
  }
  CHECK(rows == std::vector<std::uint32_t>{10, 10, 4, 1});
  CHECK(logprobs == 23);
}

TEST_CASE("one step ahead: a stop that is found late costs one row, and its token is dropped") {
  Group alone(roomy());
  alone.scheduler.add(sequence(1, 5, 3));
  alone.run();
  const std::int32_t second = alone.answers[1].at(1);
  REQUIRE(alone.answers[1].at(0) != second);

  Group group(roomy());
  NewSequence stopping = sequence(1, 5, 10);
  stopping.stop_tokens = {second};
  group.scheduler.add(stopping);
  group.schedule();
  group.schedule();
  group.complete();
  group.schedule();  // though the second token ends it
  CHECK(group.complete().at(0).finish == FinishReason::stop);
  CHECK(group.scheduler.idle());
  CHECK(group.complete().empty());
  CHECK(group.answers[1].size() == 2);
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
  std::size_t most = 0, all = 0, steps = 0;
  group.run([&](const StepMessage& message) {
    if (!message.started.empty()) return;
    const std::size_t bytes = bytes_of(message);
    most = std::max(most, bytes);
    all += bytes;
    ++steps;
  });
  CHECK(steps > 100);
  CHECK(most <= 4096);
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

}  // namespace
}  // namespace nvllm::runtime
