// Scheduler: decides what every step computes. It knows tokens and blocks, but no device, no clock
// and no ring, so a simulation can drive it through anything.
//
//   scheduler.add({.id = 1, .tokens = prompt, ...});
//   while (!scheduler.idle()) {
//     if (auto step = scheduler.schedule()) run(*step);  // perhaps again before complete()
//     // Results are passed in the order of the steps.
//     for (const SequenceOutput& output : scheduler.complete(result)) ...
//   }
//
// One step ahead: schedule() may be called while the results of earlier steps are unknown. It then
// assumes that every row gave a token and nothing stopped. If a sequence did stop, complete() drops
// the tokens that were computed for it since: it ignores results of slots that were ended, or
// started again.
//
// Pipeline stages: so many steps are in flight at a time, one in each stage. A sequence decodes in
// one of them only, since its next row needs the token that the last stage samples; a prompt's
// chunks may follow each other. So that all stages have work, a step takes no more than its share
// of the sequences that decode, and of the prompts: their number by that of the stages, rounded up.
// Whoever finds no place comes into the next step; with as many shares as there are steps in flight
// nobody waits for longer than a round.
//
// Order is the invariant. Sequences are numbered as they arrive, and none gets blocks or rows
// before an older one that could use them:
//   running_  by arrival; every one of them is older than every one that waits, and those whose
//             prompt is not computed yet are the newest (but that a prompt whose chunk ends at a
//             snapshot of states may be complete one step after newer ones)
//   waiting_  by arrival; only the first is ever admitted
// So the oldest sequence of all always runs, is never preempted (the newest is), and finishes some
// day; then the next one is the oldest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/block_manager.h"
#include "runtime/options.h"
#include "runtime/request.h"
#include "runtime/scheduler/sequence.h"
#include "runtime/scheduler/sequence_memory.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// EngineOptions and the memory plan, as far as the scheduler goes by them.
struct SchedulerLimits {
  std::int64_t max_model_len = 0;                 // tokens of a sequence, prompt and answer
  const char* length_option = "--max-model-len";  // what may raise it
  std::int64_t max_num_seqs = 0;                  // with a slot at a time
  std::int64_t max_num_batched_tokens = 0;        // rows of a step
  std::int64_t max_logit_rows = 0;                // rows of a step whose logits are wanted
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0;
  // Tokens that a row attends to at most, in every layer; blocks before them are freed. 0: any
  // number.
  std::int64_t window = 0;
  // Or: layers with a window are a group with blocks of their own (kvcache/window_blocks.h), beside
  // one with all tokens, which `blocks` are of. window == 0: there is one group.
  struct WindowGroup {
    std::int64_t window = 0;
    std::int64_t blocks = 0, host_blocks = 0;
  } window_group{};
  // Linear attention: each sequence has states, in the place of its slot, that belong to all of its
  // computed tokens. Without places for snapshots of them no prefix is shared.
  struct States {
    bool kept = false;
    std::int64_t snapshots = 0;        // places on the device
    std::int64_t snapshot_tokens = 0;  // a prompt's are so far apart; an answer's twice as far
    std::int64_t host = 0;             // states of so many sequences can be swapped
  } states{};
  // Chunked: blocks that may stay on the device, and sequences at a time that do not stay there
  // whole (at least 1).
  std::int64_t resident_blocks = 0;
  std::int64_t chunked_seqs = std::numeric_limits<std::int64_t>::max();
  std::int64_t stages = 1;  // of a pipeline
  bool prefix_caching = true;
  Scheduling scheduling = Scheduling::mixed;
  Preemption preemption = Preemption::swap;
  // A prompt that fits in a step is not cut to fill up what another one leaves of it.
  bool whole_prompts = false;
};

// New tokens of a sequence, and whether it is over.
struct SequenceOutput {
  SequenceId id = 0;
  std::vector<std::int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;  // those that came with this step
  FinishReason finish = FinishReason::none;
  bool no_token = false;                            // it ended since no logit is a number
  std::int32_t cached_tokens = 0, preemptions = 0;  // so far
  Residence residence = Residence::none;            // chunked: since it was last admitted
};

struct SchedulerStatistics {
  std::uint64_t steps = 0, rows = 0;
  std::uint64_t completed_rows = 0;  // of the rows, those whose steps are complete
  std::uint64_t preemptions = 0, swapped_blocks = 0, recomputed_tokens = 0;
  // States of linear attention that were copied: to snapshots, from them, and to the host.
  std::uint64_t saved_states = 0, restored_states = 0, swapped_states = 0;
  std::int64_t waiting = 0, running = 0;  // now
  std::int64_t free_blocks = 0, total_blocks = 0;
  std::int64_t free_window_blocks = 0, total_window_blocks = 0;  // of the group of windows
  kvcache::PrefixStatistics prefix;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(steps, rows, completed_rows, preemptions, swapped_blocks, recomputed_tokens, waiting,
            running, free_blocks, total_blocks, free_window_blocks, total_window_blocks,
            prefix.query_tokens, prefix.hit_tokens, prefix.evicted_blocks, saved_states,
            restored_states, swapped_states);
  }
};

// Not thread-safe.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // An Error with the reason if it can never run: an empty prompt, one longer than max_model_len
  // leaves room for, or than the whole cache holds. The answer ends where max_model_len or the
  // cache does.
  void add(Sequence sequence);
  // It is over at once, and gives no more output. False: there is no such sequence (any more).
  bool abort(SequenceId id);

  // Of the steps from now on: so many rows of prompts at most, at least one. Decodes are not cut.
  void set_prefill_rows(std::int64_t rows) { prefill_rows_ = std::max<std::int64_t>(rows, 1); }
  // The next step; nothing if there is nothing to compute before a result is known.
  std::optional<StepMessage> schedule();
  // The sequences to which the last step gave their first rows.
  std::span<const SequenceId> started() const { return started_; }
  // Rows of the oldest step that has no result yet, which is there.
  std::int64_t oldest_rows() const { return in_flight_.front().rows; }
  // Its result.
  std::vector<SequenceOutput> complete(const StepResult& result);

  bool idle() const { return sequences_.empty(); }  // no sequence is left
  // Steps without a result.
  std::int64_t in_flight() const { return static_cast<std::int64_t>(in_flight_.size()); }
  SchedulerStatistics statistics() const;
  const SchedulerLimits& limits() const { return limits_; }

  // For tests: everything that must always hold, or a failed check.
  void check_invariants() const;

 private:
  // How much one step may still hold.
  struct Budget {
    std::int64_t rows = 0;
    std::int64_t logits = 0;
    // Sequences that decode, and others.
    std::int64_t decodes = std::numeric_limits<std::int64_t>::max();
    std::int64_t prompts = std::numeric_limits<std::int64_t>::max();
  };
  // What one step's result will hold for one sequence, in the order of the step's rows. Results
  // name slots; a slot may have ended and started again since, so the step remembers the sequence.
  struct DueResult {
    Sequence* sequence = nullptr;
    std::uint32_t slot = 0;
    bool samples = false;
    std::int64_t first_prompt_logprob = 0;  // position of the first row that gives one
    std::int64_t prompt_logprobs = 0;       // such rows
  };
  struct StepInFlight {
    std::uint64_t number = 0;
    std::int64_t rows = 0;
    std::vector<DueResult> due = {};
  };
  enum class Admit : std::uint8_t { any, prefill, decode };

  // scheduler.cc: requests in, results back, and the ways between waiting, running and finished.
  std::int64_t max_length(const Sequence& sequence) const;
  bool append_token(Sequence& sequence, const StepResult::Token& token, SequenceOutput& output);
  static void append_prompt_logprobs(Sequence& sequence, const DueResult& due,
                                     const StepResult::PromptLogprobs& logprobs,
                                     SequenceOutput& output);
  void preempt(Sequence& sequence);
  void start_running(Sequence& sequence);
  void stop_running(Sequence& sequence);
  void finish(Sequence& sequence);
  void release_slot(const Sequence& sequence);
  void destroy_if_done(Sequence& sequence);

  // schedule.cc: the rows of a step.
  void cut_to_prefill_rows();
  void schedule_prefill_first();
  void schedule_decodes();
  void schedule_prefills();
  void admit_waiting(Admit which);
  bool grow_or_preempt(Sequence& sequence);
  // How many rows of a sequence fit, if so many of its tokens are computed.
  static std::int64_t rows_that_fit(const Sequence& sequence, std::int64_t computed,
                                    const Budget& budget);
  bool fits_whole(const Sequence& sequence, std::int64_t computed) const;
  Budget whole_budget() const {
    return {.rows = limits_.max_num_batched_tokens, .logits = limits_.max_logit_rows};
  }
  void start_budget();
  // Whether its next row's token is known, or on the device.
  bool may_decode(const Sequence& sequence) const {
    return sequence.decodes() && (limits_.stages == 1 || sequence.pending == 0);
  }
  void send_tokens(Sequence& sequence);
  void schedule_rows(Sequence& sequence, std::int64_t rows);
  void schedule_prefill(Sequence& sequence, std::int64_t rows);
  StepMessage finish_step();
  bool same_rows_as_last(const std::vector<std::uint32_t>& ended);

  const SchedulerLimits limits_;
  // With a row for every slot, no step has to choose who decodes, and prefill gets at least one.
  const std::int64_t slots_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;  // all but the finished
  std::uint64_t arrivals_ = 0;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;
  std::vector<std::unique_ptr<Sequence>> finished_;  // with results due
  std::vector<std::uint32_t> free_slots_;            // the next one at the end
  SequenceMemory memory_;

  // The step that is being put together. If it comes to have no rows, the ended slots stay for the
  // next.
  StepMessage message_;
  StepInFlight step_;
  std::vector<StepRows> rows_;
  Budget budget_;
  std::int64_t prefill_rows_ = std::numeric_limits<std::int64_t>::max();
  bool prompt_cut_ = false;          // a prompt has rows in it, but not all that are left
  std::vector<SequenceId> started_;  // for the first time, in the last step

  std::deque<StepInFlight> in_flight_;
  std::vector<std::vector<DueResult>>
      spare_due_;                    // of steps that are complete, kept for their memory
  std::vector<StepRows> last_rows_;  // of the step before
  std::vector<char> slot_ended_;     // scratch of same_rows_as_last
  std::int64_t prefills_in_a_row_ = 0;
  // The first that waits did not fit when so many blocks were free and unreserved: until there are
  // more, its prefix is not looked up again.
  struct {
    std::uint64_t arrival = 0;
    std::int64_t unreserved = 0;
  } too_large_;

  SchedulerStatistics statistics_;
};

}  // namespace nvllm::runtime
