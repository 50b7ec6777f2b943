// Scheduler: decides what every step computes. Pure: it knows tokens and blocks, no device, no clock, no
// ring; so a simulation can drive it through anything.
//
//   scheduler.add({.id = 1, .tokens = prompt, ...});
//   while (!scheduler.idle()) {
//     if (auto step = scheduler.schedule()) run(*step);          // may be called again before complete()
//     for (const Progress& news : scheduler.complete(result)) ...  // results in the order of the steps
//   }
//
// One step ahead: schedule() may be called while the results of earlier steps are unknown. It then takes
// it that every row gave a token and nothing stopped. What a sequence that did stop had computed too much
// is dropped: complete() ignores tokens of slots that were ended, or started again, since.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"
#include "layers/sampler.h"
#include "runtime/engine_options.h"
#include "runtime/request.h"
#include "runtime/step.h"

namespace nvllm::runtime {

using kvcache::SequenceId;

struct SchedulerLimits {
  std::int64_t max_model_len = 0;           // tokens of a sequence, prompt and answer
  std::int64_t max_num_seqs = 0;            // with a slot at a time
  std::int64_t max_num_batched_tokens = 0;  // rows of a step
  std::int64_t max_logit_rows = 0;          // rows of a step whose logits are wanted
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0;
  // Chunked: blocks that may stay on the device, and sequences at a time that do not stay there whole; at least 1.
  std::int64_t resident_blocks = 0;
  std::int64_t chunked_seqs = std::numeric_limits<std::int64_t>::max();
  bool prefix_caching = true;
  Scheduling scheduling = Scheduling::mixed;
  Preemption preemption = Preemption::swap;
  // A prompt that fits in a step is not cut to fill up what another one leaves of it.
  bool whole_prompts = false;
};

// One sequence: one answer to one request.
struct NewSequence {
  SequenceId id = 0;
  std::vector<std::int32_t> tokens;  // the prompt
  layers::SamplingRules rules;
  std::int32_t max_tokens = 0;            // of the answer; at least 1
  std::vector<std::int32_t> stop_tokens;  // that end it: ends (unless ignored) and stop ids
  std::int32_t prompt_logprobs = -1;
};

// What complete() says of a sequence: tokens that are new, and whether it is over.
struct Progress {
  SequenceId id = 0;
  std::vector<std::int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;  // those that came with this step
  FinishReason finish = FinishReason::none;
  std::int32_t cached_tokens = 0, preemptions = 0;  // so far
  Residence residence = Residence::none;            // chunked: since it entered last
};

struct SchedulerStatistics {
  std::uint64_t steps = 0, rows = 0;
  std::uint64_t preemptions = 0, swapped_blocks = 0, recomputed_tokens = 0;
  std::int64_t waiting = 0, running = 0;  // now
  std::int64_t free_blocks = 0, total_blocks = 0;
  kvcache::PrefixStatistics prefix;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(steps, rows, preemptions, swapped_blocks, recomputed_tokens, waiting, running,
            free_blocks, total_blocks, prefix.query_tokens, prefix.hit_tokens,
            prefix.evicted_blocks);
  }
};

// Not thread-safe.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // An Error with the reason if it can never run: an empty prompt, one longer than max_model_len leaves
  // room for, or than the whole cache holds. max_tokens is cut to the room there is.
  void add(NewSequence sequence);
  // It is over at once: no Progress of it comes any more. False: there is no such sequence (any more).
  bool abort(SequenceId id);

  // The next step; nothing if there is nothing to compute before a result is known.
  std::optional<StepMessage> schedule();
  // The sequences to which the last step gave their first rows.
  std::span<const SequenceId> started() const;
  // The result of the oldest step that has none yet.
  std::vector<Progress> complete(const StepResult& result);

  bool idle() const;               // no sequence is left
  std::int64_t in_flight() const;  // steps without a result
  SchedulerStatistics statistics() const;
  const SchedulerLimits& limits() const;

  // For tests: everything that must always hold, or a failed check.
  void check_invariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::runtime
