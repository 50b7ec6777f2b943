// A sequence's way from place to place.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "runtime/scheduler_state.h"

namespace nvllm::runtime {

// A block for its next row, at the cost of newer sequences. False: it was the newest, and is preempted
// itself.
bool Scheduler::State::room_for_next_row(Sequence& sequence) {
  while (!memory_.grow(sequence, sequence.computed + 1, message_)) {
    NVLLM_CHECK(running_.size() > 1, "sequence ", sequence.id, " does not fit alone");
    Sequence& newest = *running_.back();
    preempt(newest);
    if (&newest == &sequence) return false;
  }
  return true;
}

// The newest that runs. It waits before all others; nobody who waits is older.
void Scheduler::State::preempt(Sequence& sequence) {
  // Copies to the host come first in a message: they must not go where others come from.
  NVLLM_CHECK(message_.swap_in.empty(), "step ", statistics_.steps + 1);
  const std::int64_t computed = sequence.computed;
  const bool swap = limits.preemption == Preemption::swap;
  if (swap && memory_.leave_to_host(sequence, message_)) {
    statistics_.swapped_blocks += sequence.host_blocks.size();
  } else {
    memory_.leave(sequence);
    sequence.lost = std::max(sequence.lost, computed);
    sequence.computed = 0;
  }
  release_slot(sequence);
  running_.pop_back();
  sequence.place = Sequence::Place::waiting;
  waiting_.push_front(&sequence);
  ++sequence.preemptions;
  ++statistics_.preemptions;
}

// The first that waits gets a slot and blocks.
void Scheduler::State::start(Sequence& sequence) {
  waiting_.pop_front();
  running_.push_back(&sequence);
  sequence.place = Sequence::Place::running;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  memory_.enter(sequence, message_);
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens = static_cast<std::int32_t>(sequence.computed);
    started.push_back(sequence.id);
  }
  statistics_.recomputed_tokens +=
      static_cast<std::uint64_t>(std::max<std::int64_t>(sequence.lost - sequence.computed, 0));
  sequence.lost = 0;
  message_.started.push_back(
      {.slot = sequence.slot,
       .tokens = sequence.tokens,
       .computed = static_cast<std::int32_t>(sequence.computed),
       .rules = sequence.rules,
       .prompt_logprobs = sequence.scores_prompt() ? sequence.prompt_logprobs : -1,
       .resident = static_cast<std::int32_t>(sequence.resident)});
}

// Slot and blocks are free from the next step on: what is enqueued before has the older right to them.
void Scheduler::State::stop_running(Sequence& sequence) {
  memory_.leave(sequence);
  release_slot(sequence);
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
}

void Scheduler::State::release_slot(const Sequence& sequence) {
  message_.ended.push_back(sequence.slot);
  free_slots_.push_back(sequence.slot);
}

void Scheduler::State::end(Sequence& sequence) {
  if (sequence.place == Sequence::Place::running) stop_running(sequence);
  if (sequence.place == Sequence::Place::waiting) {
    memory_.drop_host_blocks(sequence);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  }
  sequence.place = Sequence::Place::over;
  auto node = sequences.extract(sequence.id);
  if (sequence.results_due > 0) over_.push_back(std::move(node.mapped()));
}

}  // namespace nvllm::runtime
