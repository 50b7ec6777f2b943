// Scheduler: decides what every step computes. It depends on no device, clock or ring, only on
// tokens and blocks, so that a simulation can drive it through any situation.
//
//     scheduler.add({.id = 1, .tokens = prompt, ...});
//     while (!scheduler.idle()) {
//       if (auto step = scheduler.schedule()) run(*step);  // perhaps again before complete()
//       // Results are passed in the order of the steps.
//       for (const SequenceOutput& output : scheduler.complete(result)) ...
//     }
//
// One step ahead: schedule() may be called while the results of earlier steps are unknown. It then
// assumes that every row yields a token and that no sequence stops. If a sequence did stop,
// complete() drops the tokens computed for it since: it ignores results of slots that were ended,
// or started again.
//
// Pipeline stages: one step is in flight in each stage. A sequence decodes in only one of them,
// since its next row needs the token that the last stage samples; a prompt's chunks may follow each
// other. So that all stages have work, a step takes at most its share of the decoding sequences,
// and of the prompts: their number divided by the number of stages, rounded up. The rest runs in
// the next steps; since there are as many shares as steps in flight, no sequence waits longer than
// a round.
//
// Order is the invariant. Sequences are numbered as they arrive, and none gets blocks or rows
// before an older one that could use them:
//   running_  by arrival; each is older than all waiting ones. Those whose prompt is not yet
//             computed are the newest (except that a prompt whose chunk ends at a snapshot
//             of states may complete one step after newer ones)
//   waiting_  by arrival; only the first is ever admitted
// So the oldest sequence always runs, is never preempted (the newest is), and eventually finishes;
// then the next one is the oldest.
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

// The part of EngineOptions and the memory plan that the scheduler needs.
struct SchedulerLimits {
  std::int64_t max_model_len = 0;                 // tokens of a sequence, prompt included
  const char* length_option = "--max-model-len";  // the option that raises it
  std::int64_t max_num_seqs = 0;                  // that have a slot at a time
  std::int64_t max_num_batched_tokens = 0;        // rows of a step
  std::int64_t max_logit_rows = 0;                // rows of a step with logits
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0;
  // Attention window in tokens, if all layers have one; blocks before it are freed. 0: no limit.
  std::int64_t window = 0;
  // Alternatively, layers with a window form a group with blocks of their own
  // (kvcache/window_blocks.h); the other group keeps all tokens, in `blocks`. window == 0: there is
  // one group.
  struct WindowGroup {
    std::int64_t window = 0;
    std::int64_t blocks = 0, host_blocks = 0;
  } window_group{};
  // Linear attention: each sequence has states in its slot, which cover all of its computed tokens.
  // Without space for snapshots of them, prefixes are not shared.
  struct States {
    bool kept = false;
    std::int64_t snapshots = 0;        // slots on the device
    std::int64_t snapshot_tokens = 0;  // distance between snapshots of a prompt; twice that for
                                       // generated tokens
    std::int64_t host = 0;             // number of sequences whose states can be swapped
  } states{};
  // Chunked mode: blocks that may stay on the device, and the maximum number of running sequences
  // that are not entirely there (at least 1).
  std::int64_t resident_blocks = 0;
  std::int64_t chunked_seqs = std::numeric_limits<std::int64_t>::max();
  std::int64_t stages = 1;  // pipeline stages
  bool prefix_caching = true;
  Scheduling scheduling = Scheduling::mixed;
  Preemption preemption = Preemption::swap;
  // A prompt that fits in one step is not chunked to fill the rest of another step.
  bool whole_prompts = false;
};

// New tokens of a sequence, and whether it finished.
struct SequenceOutput {
  SequenceId id = 0;
  std::vector<std::int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;  // those of this step
  FinishReason finish = FinishReason::none;
  bool no_token = false;                            // it ended because no logit is a number
  std::int32_t cached_tokens = 0, preemptions = 0;  // so far
  Residence residence = Residence::none;            // chunked mode: since it was last admitted
};

struct SchedulerStatistics {
  std::uint64_t steps = 0, rows = 0;
  std::uint64_t completed_rows = 0;  // rows of complete steps
  std::uint64_t preemptions = 0, swapped_blocks = 0, recomputed_tokens = 0;
  // Copied states of linear attention: to snapshots, from snapshots, and to the host.
  std::uint64_t saved_states = 0, restored_states = 0, swapped_states = 0;
  std::int64_t waiting = 0, running = 0;  // now
  std::int64_t free_blocks = 0, total_blocks = 0;
  std::int64_t free_window_blocks = 0, total_window_blocks = 0;  // of the window group
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

  // Throws an Error with the reason if the sequence can never run: if the prompt is empty, or
  // longer than max_model_len or the whole cache allows. The sequence ends when max_model_len or
  // the cache is exhausted.
  void add(Sequence sequence);
  // Ends the sequence immediately, without further output. False: there is no such sequence.
  bool abort(SequenceId id);

  // Limits the prefill rows of later steps, at least one. Decodes are not limited.
  void set_prefill_rows(std::int64_t rows) { prefill_rows_ = std::max<std::int64_t>(rows, 1); }
  // The next step; nullopt if there is nothing to compute until a result is known.
  std::optional<StepMessage> schedule();
  // The sequences whose first rows are in the last step.
  std::span<const SequenceId> started() const { return started_; }
  // Rows of the oldest step without a result; there must be one.
  std::int64_t oldest_rows() const { return in_flight_.front().rows; }
  // Passes the result of the oldest step.
  std::vector<SequenceOutput> complete(const StepResult& result);

  bool idle() const { return sequences_.empty(); }  // no sequence is left
  // Number of steps without a result.
  std::int64_t in_flight() const { return static_cast<std::int64_t>(in_flight_.size()); }
  SchedulerStatistics statistics() const;
  const SchedulerLimits& limits() const { return limits_; }

  // For tests: fails a CHECK if an invariant is broken.
  void check_invariants() const;

 private:
  // What else fits in the step.
  struct Budget {
    std::int64_t rows = 0;
    std::int64_t logits = 0;
    // Sequences that decode, and those in prefill.
    std::int64_t decodes = std::numeric_limits<std::int64_t>::max();
    std::int64_t prompts = std::numeric_limits<std::int64_t>::max();
  };
  // What a step's result will contain for one sequence, in the order of the step's rows. Results
  // identify sequences by slot, but a slot may have been ended and started again since, so the step
  // stores the sequence.
  struct DueResult {
    Sequence* sequence = nullptr;
    std::uint32_t slot = 0;
    bool samples = false;
    std::int64_t first_prompt_logprob = 0;  // position of the first row that yields one
    std::int64_t prompt_logprobs = 0;       // number of such rows
  };
  struct StepInFlight {
    std::uint64_t number = 0;
    std::int64_t rows = 0;
    std::vector<DueResult> due = {};
  };
  enum class Admit : std::uint8_t { any, prefill, decode };

  // scheduler.cc: requests, results, and transitions between waiting, running and finished.
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
  // How many rows of a sequence fit, if `computed` of its tokens are computed.
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
  // Every slot has a row, so all sequences that decode fit in a step, and prefill gets at least one
  // row.
  const std::int64_t slots_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;  // except finished ones
  std::uint64_t arrivals_ = 0;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;
  std::vector<std::unique_ptr<Sequence>> finished_;  // with results due
  std::vector<std::uint32_t> free_slots_;            // the next one to use is the last
  SequenceMemory memory_;

  // The step being scheduled. If it has no rows, the ended slots stay for the next one.
  StepMessage message_;
  StepInFlight step_;
  std::vector<StepRows> rows_;
  Budget budget_;
  std::int64_t prefill_rows_ = std::numeric_limits<std::int64_t>::max();
  bool prompt_cut_ = false;          // a prompt has rows in the step, but not all that remain
  std::vector<SequenceId> started_;  // for the first time in the last step

  std::deque<StepInFlight> in_flight_;
  std::vector<std::vector<DueResult>> spare_due_;  // of completed steps, kept to reuse their memory
  std::vector<StepRows> last_rows_;                // of the previous step
  std::vector<char> slot_ended_;                   // temporary storage of same_rows_as_last
  std::int64_t prefills_in_a_row_ = 0;
  // The first waiting sequence did not fit when `free` blocks were free and unreserved: its prefix
  // is not looked up again until there are more.
  struct {
    std::uint64_t arrival = 0;
    std::int64_t unreserved = 0;
  } too_large_;

  SchedulerStatistics statistics_;
};

}  // namespace nvllm::runtime
