// What a step computes.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "runtime/scheduler_state.h"

namespace nvllm::runtime {
namespace {

// Prefill first: after so many steps of prefill in a row those who decode get one. Without it answers of
// one token that keep coming would stop everybody else.
constexpr std::int64_t kMostPrefillsInARow = 16;

}  // namespace

std::optional<StepMessage> Scheduler::State::schedule() {
  budget_ = whole_budget();
  rows_.clear();
  started.clear();
  cut_ = false;
  due_ = in_flight.begin(statistics_.steps + 1);
  if (limits.scheduling == Scheduling::mixed)
    schedule_mixed();
  else
    schedule_prefill_first();
  if (!rows_.empty()) return finish_step();
  in_flight.give_back(std::move(due_));
  return std::nullopt;
}

void Scheduler::State::schedule_mixed() {
  decode();
  prefill();
  admit(Wanted::anybody);
}

// A step is either all prefill or all decoding. Who was swapped out while it decoded comes back with the
// latter.
void Scheduler::State::schedule_prefill_first() {
  const bool owed =
      prefills_in_a_row_ >= kMostPrefillsInARow &&
      std::any_of(running_.begin(), running_.end(), [](const Sequence* s) { return s->decodes(); });
  if (!owed) {
    prefill();
    admit(Wanted::prompts);
  }
  if (rows_.empty()) {
    decode();
    admit(Wanted::decoding);
    prefills_in_a_row_ = 0;
  } else {
    ++prefills_in_a_row_;
  }
}

void Scheduler::State::decode() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decodes()) continue;
    if (!room_for_next_row(sequence)) return;
    give_rows(sequence, 1);
  }
}

void Scheduler::State::prefill() {
  for (Sequence* sequence : running_) {
    if (sequence->decodes()) continue;
    const std::int64_t rows = rows_that_fit(*sequence, sequence->computed, budget_);
    if (rows > 0) give_rows(*sequence, rows);
  }
}

// In their order, and none past one that has to wait: for results that are due to it, for blocks, for rows.
void Scheduler::State::admit(Wanted wanted) {
  // Everybody who runs can have one more block, if it may ever need one, before somebody has to be preempted for it;
  // else who comes in now might be the one, at once. The last token is stored nowhere.
  const auto grows = [](const Sequence* sequence) {
    return sequence->limit - 1 > sequence->capacity;
  };
  std::int64_t spare = std::count_if(running_.begin(), running_.end(), grows);
  while (!waiting_.empty() && !free_slots_.empty() && budget_.rows > 0) {
    Sequence& next = *waiting_.front();
    if (next.results_due > 0) return;
    // It might share what the prompt computes in this step, of which its rows would come first.
    if (limits.whole_prompts && cut_) return;
    if (wanted != Wanted::anybody && next.decodes() != (wanted == Wanted::decoding)) return;

    if (!memory_.place_for(next)) return;

    const std::int64_t unclaimed = memory_.device().free_blocks() - spare;
    if (too_large_.number == next.number && unclaimed <= too_large_.unclaimed) return;
    const SequenceMemory::Room room = memory_.room_for(next, spare);
    if (!room.enough) {
      too_large_ = {.number = next.number, .unclaimed = unclaimed};
      return;
    }
    const std::int64_t rows = rows_that_fit(next, room.computed, budget_);
    if (rows == 0) return;
    if ((wanted == Wanted::prompts || limits.whole_prompts) && !rows_.empty() &&
        rows < next.length() - room.computed && fits_whole(next, room.computed))
      return;
    start(next);
    spare += grows(&next) ? 1 : 0;
    NVLLM_CHECK_EQ(next.computed, room.computed);
    give_rows(next, rows);
  }
}

std::int64_t Scheduler::State::rows_that_fit(const Sequence& sequence, std::int64_t computed,
                                             const Budget& budget) {
  const std::int64_t left = sequence.length() - computed;
  const std::int64_t rows = std::min(left, budget.rows);
  const std::int64_t scored = sequence.scored_rows(computed, rows);
  if (scored > budget.logits) return budget.logits;              // those that are scored come first
  if (rows == left && scored == budget.logits) return rows - 1;  // the last one draws
  return rows;
}

// Whether what is left of it fits in a step of its own.
bool Scheduler::State::fits_whole(const Sequence& sequence, std::int64_t computed) const {
  return rows_that_fit(sequence, computed, whole_budget()) == sequence.length() - computed;
}

void Scheduler::State::give_rows(Sequence& sequence, std::int64_t rows) {
  const DueResult due = {.sequence = &sequence,
                         .slot = sequence.slot,
                         .draws = rows == sequence.left(),
                         .first_scored = sequence.computed,
                         .scored = sequence.scored_rows(sequence.computed, rows)};
  rows_.push_back({.slot = sequence.slot, .rows = static_cast<std::uint32_t>(rows)});
  cut_ |= !due.draws;
  budget_.rows -= rows;
  budget_.logits -= due.scored + (due.draws ? 1 : 0);
  sequence.computed += rows;
  if (due.draws) ++sequence.drawing;
  if (due.draws || due.scored > 0) {
    due_.due.push_back(due);
    ++sequence.results_due;
  }
  memory_.commit(sequence);
}

StepMessage Scheduler::State::finish_step() {
  StepMessage message = std::exchange(message_, {});
  message.number = ++statistics_.steps;
  message.same_rows = same_rows_as_last(message.ended);
  if (!message.same_rows) message.rows = rows_;
  last_rows_.swap(rows_);
  statistics_.rows += static_cast<std::uint64_t>(limits.max_num_batched_tokens - budget_.rows);

  // Who reaches its limit with this step needs slot and blocks no longer: the last token needs no row.
  for (const DueResult& due : due_.due) {
    Sequence& sequence = *due.sequence;
    if (sequence.length() < sequence.limit) continue;
    stop_running(sequence);
    sequence.place = Sequence::Place::leaving;
  }
  in_flight.push(std::move(due_));
  return message;
}

bool Scheduler::State::same_rows_as_last(const std::vector<std::uint32_t>& ended) {
  for (const std::uint32_t slot : ended) slot_ended_[slot] = 1;
  auto row = rows_.begin();
  bool same = true;
  for (const StepRows& last : last_rows_) {
    if (slot_ended_[last.slot] != 0) continue;
    same = row != rows_.end() && row->slot == last.slot && row->rows == 1;
    if (!same) break;
    ++row;
  }
  for (const std::uint32_t slot : ended) slot_ended_[slot] = 0;
  return same && row == rows_.end();
}

}  // namespace nvllm::runtime
