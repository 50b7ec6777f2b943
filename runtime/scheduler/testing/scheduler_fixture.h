// A scheduler with a mock rank, for tests of single steps.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "runtime/scheduler/scheduler.h"
#include "runtime/scheduler/testing/mock_rank.h"

namespace nvllm::runtime {

inline SchedulerLimits roomy() {
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
inline Sequence sequence(SequenceId id, std::int32_t prompt, std::int32_t max_tokens = 16) {
  Sequence sequence;
  sequence.id = id;
  sequence.tokens.resize(static_cast<std::size_t>(prompt));
  std::iota(sequence.tokens.begin(), sequence.tokens.end(), static_cast<std::int32_t>(id) * 10'000);
  sequence.max_tokens = max_tokens;
  sequence.rules.prompt_length = prompt;
  return sequence;
}

// A scheduler with a mock rank.
class Group {
 public:
  explicit Group(const SchedulerLimits& limits) : scheduler(limits), rank_(limits, {}) {}

  // The next step, which must exist.
  StepMessage schedule() {
    const auto message = scheduler.schedule();
    REQUIRE(message.has_value());
    results_.push_back(rank_.step(*message));
    scheduler.check_invariants();
    return *message;
  }
  // spoil: changes the rank's result.
  std::vector<SequenceOutput> complete(const std::function<void(StepResult&)>& spoil = {}) {
    REQUIRE(!results_.empty());
    StepResult result = results_.front();
    results_.pop_front();
    if (spoil) spoil(result);
    auto progress = scheduler.complete(result);
    scheduler.check_invariants();
    for (const SequenceOutput& output : progress) {
      auto& tokens = answers[output.id];
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      if (output.finish != FinishReason::none) finished[output.id] = output.finish;
    }
    return progress;
  }
  StepMessage step() {
    const StepMessage message = schedule();
    complete();
    return message;
  }
  // Runs until no sequence is left; calls `each` for every message.
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

}  // namespace nvllm::runtime
