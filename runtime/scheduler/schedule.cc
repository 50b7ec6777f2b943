// Scheduler::schedule(): chooses the rows of a step, by either of the two policies.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {
namespace {

// Prefill first: after this many prefill steps in a row, one step decodes. Otherwise a stream of
// requests for one token would starve all others.
constexpr std::int64_t kMaxPrefillsInARow = 16;

}  // namespace

std::optional<StepMessage> Scheduler::schedule() {
  for (const Sequence* sequence : running_) memory_.free_before_window(*sequence);
  start_budget();
  rows_.clear();
  started_.clear();
  prompt_cut_ = false;
  step_.number = statistics_.steps + 1;
  step_.rows = 0;
  step_.due.clear();
  if (limits_.scheduling == Scheduling::mixed) {
    schedule_decodes();
    cut_to_prefill_rows();
    schedule_prefills();
    admit_waiting(Admit::any);
  } else {
    schedule_prefill_first();
  }
  if (rows_.empty()) return std::nullopt;
  return finish_step();
}

// A step is either all prefill or all decode. A sequence that was swapped out during decode is
// admitted by a decode step.
void Scheduler::schedule_prefill_first() {
  const bool decode_owed = prefills_in_a_row_ >= kMaxPrefillsInARow &&
                           std::any_of(running_.begin(), running_.end(),
                                       [&](const Sequence* s) { return may_decode(*s); });
  if (!decode_owed) {
    cut_to_prefill_rows();
    schedule_prefills();
    admit_waiting(Admit::prefill);
  }
  if (rows_.empty()) {
    start_budget();
    schedule_decodes();
    admit_waiting(Admit::decode);
    prefills_in_a_row_ = 0;
  } else {
    ++prefills_in_a_row_;
  }
}

// A step's budget: its maximum, but no more than a stage's share of the sequences.
void Scheduler::start_budget() {
  budget_ = whole_budget();
  if (limits_.stages == 1) return;
  const auto decoding = std::count_if(running_.begin(), running_.end(),
                                      [](const Sequence* s) { return s->decodes(); });
  const auto prompts =
      std::ssize(running_) - decoding + std::min(std::ssize(waiting_), std::ssize(free_slots_));
  budget_.decodes = divide_up<std::int64_t>(decoding, limits_.stages);
  budget_.prompts = divide_up<std::int64_t>(prompts, limits_.stages);
}

void Scheduler::cut_to_prefill_rows() {
  budget_.rows = std::min(budget_.rows, prefill_rows_);
}

void Scheduler::schedule_decodes() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!may_decode(sequence)) continue;
    if (budget_.decodes == 0) return;
    memory_.free_unseen(sequence);
    if (!grow_or_preempt(sequence)) return;
    --budget_.decodes;
    schedule_rows(sequence, 1);
  }
}

void Scheduler::schedule_prefills() {
  for (Sequence* sequence : running_) {
    if (sequence->decodes() || budget_.prompts == 0) continue;
    const std::int64_t rows = rows_that_fit(*sequence, sequence->computed, budget_);
    if (rows == 0) continue;
    --budget_.prompts;
    schedule_prefill(*sequence, rows);
  }
}

// Admits waiting sequences in order, and stops at the first that must wait: for pending results,
// blocks, or rows.
void Scheduler::admit_waiting(Admit which) {
  // Reserves one more block for every running sequence that may grow; otherwise a sequence admitted
  // now might be preempted immediately. The last token has no keys and values.
  const auto grows = [](const Sequence* sequence) {
    return sequence->max_length - 1 > sequence->capacity;
  };
  std::int64_t reserved = std::count_if(running_.begin(), running_.end(), grows);
  while (!waiting_.empty() && !free_slots_.empty() && budget_.rows > 0 && budget_.prompts > 0) {
    Sequence& next = *waiting_.front();
    if (next.results_due > 0) return;
    // It might share blocks of the prompt that this step chunks, and its rows would come first.
    if (limits_.whole_prompts && prompt_cut_) return;
    if (which != Admit::any && next.decodes() != (which == Admit::decode)) return;

    if (!memory_.can_be_chunked_or_resident(next) || !memory_.has_room_for_window(next)) return;

    const std::int64_t unreserved = memory_.device().free_blocks() - reserved;
    if (too_large_.arrival == next.arrival && unreserved <= too_large_.unreserved) return;
    const SequenceMemory::Fit fit = memory_.fit(next, reserved);
    if (!fit.enough) {
      too_large_ = {.arrival = next.arrival, .unreserved = unreserved};
      return;
    }
    const std::int64_t rows = rows_that_fit(next, fit.computed, budget_);
    if (rows == 0) return;
    if ((which == Admit::prefill || limits_.whole_prompts) && !rows_.empty() &&
        rows < next.length() - fit.computed && fits_whole(next, fit.computed))
      return;
    start_running(next);
    --budget_.prompts;
    reserved += grows(&next) ? 1 : 0;
    NVLLM_CHECK_EQ(next.computed, fit.computed);
    schedule_prefill(next, rows);
  }
}

// Gets a block for the sequence's next row, if necessary by preempting newer ones. False: it was
// the newest, and was preempted itself.
bool Scheduler::grow_or_preempt(Sequence& sequence) {
  while (!memory_.grow(sequence, sequence.computed + 1, message_)) {
    NVLLM_CHECK(running_.size() > 1, "sequence ", sequence.id, " does not fit alone");
    Sequence& newest = *running_.back();
    preempt(newest);
    if (&newest == &sequence) return false;
  }
  return true;
}

std::int64_t Scheduler::rows_that_fit(const Sequence& sequence, std::int64_t computed,
                                      const Budget& budget) {
  const std::int64_t left = sequence.length() - computed;
  const std::int64_t rows = std::min(left, budget.rows);
  const std::int64_t logprobs = sequence.prompt_logprob_rows(computed, rows);
  if (logprobs > budget.logits) return budget.logits;  // rows with prompt logprobs come first
  if (rows == left && logprobs == budget.logits) return rows - 1;  // the last row samples
  return rows;
}

// Whether the rest of it fits in a step of its own.
bool Scheduler::fits_whole(const Sequence& sequence, std::int64_t computed) const {
  return rows_that_fit(sequence, computed, whole_budget()) == sequence.length() - computed;
}

// With pipeline stages: sends tokens sampled since the sequence was last sent.
void Scheduler::send_tokens(Sequence& sequence) {
  if (limits_.stages == 1) return;
  for (; sequence.sent < sequence.known(); ++sequence.sent) {
    message_.tokens.push_back(
        {.slot = sequence.slot, .token = sequence.tokens[static_cast<std::size_t>(sequence.sent)]});
  }
}

// Limits `rows` to the next snapshot of states, and to the blocks of the window group. If blocks
// limit it, newer sequences wait for the next step: no prompt completes before an older one. (After
// a snapshot little of a prompt is left, so others need not wait for that.)
void Scheduler::schedule_prefill(Sequence& sequence, std::int64_t rows) {
  rows = memory_.rows_to_snapshot(sequence, rows);
  const std::int64_t in_window = memory_.rows_in_window(sequence);
  schedule_rows(sequence, std::min(rows, in_window));
  if (in_window < rows) budget_.rows = 0;
}

void Scheduler::schedule_rows(Sequence& sequence, std::int64_t rows) {
  send_tokens(sequence);
  const DueResult due = {.sequence = &sequence,
                         .slot = sequence.slot,
                         .samples = rows == sequence.uncomputed(),
                         .first_prompt_logprob = sequence.computed,
                         .prompt_logprobs = sequence.prompt_logprob_rows(sequence.computed, rows)};
  rows_.push_back({.slot = sequence.slot, .rows = static_cast<std::uint32_t>(rows)});
  memory_.free_unseen(sequence);
  memory_.grow_window(sequence, sequence.computed + rows, message_);
  prompt_cut_ |= !due.samples;
  step_.rows += rows;
  budget_.rows -= rows;
  budget_.logits -= due.prompt_logprobs + (due.samples ? 1 : 0);
  sequence.computed += rows;
  if (due.samples) ++sequence.pending;
  if (due.samples || due.prompt_logprobs > 0) {
    step_.due.push_back(due);
    ++sequence.results_due;
  }
  memory_.commit(sequence);
  memory_.take_snapshot(sequence, message_);
}

StepMessage Scheduler::finish_step() {
  StepMessage message = std::exchange(message_, {});
  memory_.end_message();
  message.number = ++statistics_.steps;
  message.same_rows = same_rows_as_last(message.ended);
  if (!message.same_rows) message.rows = rows_;
  last_rows_.swap(rows_);
  statistics_.rows += static_cast<std::uint64_t>(step_.rows);
  statistics_.saved_states += message.states.save.size();
  statistics_.restored_states += message.states.restore.size();
  statistics_.swapped_states += message.states.swap_out.size();

  // A sequence that reaches max_length in this step no longer needs its slot and blocks: the last
  // token has no row.
  for (const DueResult& due : step_.due) {
    Sequence& sequence = *due.sequence;
    if (sequence.length() < sequence.max_length) continue;
    stop_running(sequence);
    sequence.state = Sequence::State::finishing;
  }
  in_flight_.push_back(std::move(step_));
  step_.due.clear();
  if (!spare_due_.empty()) {
    step_.due = std::move(spare_due_.back());
    spare_due_.pop_back();
  }
  return message;
}

bool Scheduler::same_rows_as_last(const std::vector<std::uint32_t>& ended) {
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
