// Scheduler::State: who waits, who runs, and the step that is being put together.
//
//   scheduler.cc          requests in, results back
//   scheduler_step.cc     what a step computes: the two policies
//   scheduler_places.cc   a sequence's way from place to place: admitted, preempted, ended
//   scheduler_checks.cc   what must always hold
//
// Order is everything. Sequences are numbered as they arrive, and nobody is given blocks or rows before
// somebody older who could use them:
//   running_  by number; every one of them is older than every one that waits, and those whose prompt is
//             not computed yet are the newest
//   waiting_  by number; only the first is ever admitted
// So the oldest sequence of all always runs, is never preempted (the newest is), and is done some day;
// then the next one is the oldest.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/scheduler.h"
#include "runtime/sequence.h"
#include "runtime/sequence_memory.h"
#include "runtime/steps_in_flight.h"

namespace nvllm::runtime {

struct Scheduler::State {
  explicit State(const SchedulerLimits& limits);

  // scheduler.cc
  void add(NewSequence sequence);
  std::vector<Progress> complete(const StepResult& result);
  SchedulerStatistics statistics() const;

  // scheduler_step.cc
  std::optional<StepMessage> schedule();

  // scheduler_places.cc
  void end(Sequence& sequence);

  void check_invariants() const;

  const SchedulerLimits limits;
  // With a row for everybody, no step has to choose who decodes, and prefill gets at least one.
  const std::int64_t slots;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences;  // but those that are over
  StepsInFlight in_flight;
  std::vector<SequenceId> started;  // for the first time, in the last step

 private:
  // What one step may still hold.
  struct Budget {
    std::int64_t rows = 0;
    std::int64_t logits = 0;
  };
  // Whom a step may admit.
  enum class Wanted : std::uint8_t { anybody, prompts, decoding };

  // scheduler.cc
  std::int64_t room_for_answer(const NewSequence& sequence) const;
  bool take_token(Sequence& sequence, const StepResult::Token& token, Progress& news);
  static void take_scores(Sequence& sequence, const DueResult& due,
                          const StepResult::PromptLogprobs& scores, Progress& news);
  void forget(Sequence& sequence);

  // scheduler_step.cc
  void schedule_mixed();
  void schedule_prefill_first();
  void decode();
  void prefill();
  void admit(Wanted wanted);
  // How many rows of a sequence fit, if so many of its tokens are computed.
  static std::int64_t rows_that_fit(const Sequence& sequence, std::int64_t computed,
                                    const Budget& budget);
  bool fits_whole(const Sequence& sequence, std::int64_t computed) const;
  Budget whole_budget() const {
    return {.rows = limits.max_num_batched_tokens, .logits = limits.max_logit_rows};
  }
  void give_rows(Sequence& sequence, std::int64_t rows);
  StepMessage finish_step();
  bool same_rows_as_last(const std::vector<std::uint32_t>& ended);

  // scheduler_places.cc
  bool room_for_next_row(Sequence& sequence);
  void preempt(Sequence& sequence);
  void start(Sequence& sequence);
  void stop_running(Sequence& sequence);
  void release_slot(const Sequence& sequence);

  std::uint64_t arrivals_ = 0;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;
  std::vector<std::unique_ptr<Sequence>> over_;  // with results due
  std::vector<std::uint32_t> free_slots_;        // the next one at the end
  SequenceMemory memory_;

  // The step that is being put together. If it comes to have no rows, the ended slots stay for the next.
  StepMessage message_;
  StepsInFlight::Step due_;
  std::vector<StepRows> rows_;
  Budget budget_;
  bool cut_ = false;  // a prompt has rows in it, but not all that are left

  std::vector<StepRows> last_rows_;  // of the step before
  std::vector<char> slot_ended_;     // scratch of same_rows_as_last
  std::int64_t prefills_in_a_row_ = 0;
  // The first that waits did not fit, with so many blocks that nobody else may need soon: while there are
  // not more, its prefix is not looked up again.
  struct {
    std::uint64_t number = 0;
    std::int64_t unclaimed = 0;
  } too_large_;

  SchedulerStatistics statistics_;
};

}  // namespace nvllm::runtime
