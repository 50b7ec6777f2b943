#include "runtime/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nvllm::runtime {

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits),
      slots_(std::min({limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_logit_rows})),
      memory_(limits) {
  NVLLM_CHECK(slots_ > 0 && limits.max_model_len > 0 && limits.blocks > 0, "max_num_seqs ",
              limits.max_num_seqs, ", max_num_batched_tokens ", limits.max_num_batched_tokens,
              ", max_logit_rows ", limits.max_logit_rows, ", max_model_len ", limits.max_model_len,
              ", blocks ", limits.blocks);
  NVLLM_CHECK(limits.stages == 1 || limits.states.snapshots == 0, limits.stages, " stages");
  for (std::int64_t slot = slots_; slot-- > 0;)
    free_slots_.push_back(static_cast<std::uint32_t>(slot));
  slot_ended_.resize(static_cast<std::size_t>(slots_));
}

// --- Requests and results ---

// Maximum tokens of the sequence. At least one more than the prompt; otherwise an Error.
std::int64_t Scheduler::max_length(const Sequence& sequence) const {
  const std::int64_t prompt = sequence.known();
  const std::int64_t cache = limits_.blocks * limits_.block_size;
  if (prompt == 0) fail("prompt of 0 tokens: there is nothing to go on from; pass at least one");
  if (sequence.max_tokens < 1)
    fail("max_tokens ", sequence.max_tokens, ": an answer has at least one token; pass 1 or more");
  if (prompt >= limits_.max_model_len)
    fail("prompt of ", prompt, " tokens: max_model_len is ", limits_.max_model_len,
         ", which leaves no room for an answer; pass ", limits_.length_option, ' ', prompt + 1,
         " or more, or a shorter prompt");
  if (prompt >= cache)
    fail("prompt of ", prompt, " tokens: the whole KV cache holds ", cache, " (", limits_.blocks,
         " blocks of ", limits_.block_size,
         "), which leaves no room for an answer; raise --gpu-memory-utilization or "
         "--kv-cache-memory-bytes, or pass a shorter prompt");
  return std::min({prompt + sequence.max_tokens, limits_.max_model_len, cache});
}

void Scheduler::add(Sequence given) {
  given.max_length = max_length(given);
  given.prompt_length = given.known();
  given.arrival = ++arrivals_;
  const SequenceId id = given.id;
  const auto [place, inserted] =
      sequences_.emplace(id, std::make_unique<Sequence>(std::move(given)));
  NVLLM_CHECK(inserted, "sequence ", id, " was added twice");
  waiting_.push_back(place->second.get());
}

bool Scheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  finish(*found->second);
  return true;
}

std::vector<SequenceOutput> Scheduler::complete(const StepResult& result) {
  NVLLM_CHECK(!in_flight_.empty(), "result of step ", result.number, ", but none is in flight");
  StepInFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  NVLLM_CHECK_EQ(result.number, step.number);
  statistics_.completed_rows += static_cast<std::uint64_t>(step.rows);
  std::vector<SequenceOutput> outputs;
  outputs.reserve(step.due.size());
  auto token = result.tokens.begin();
  auto logprobs = result.prompts.begin();
  for (const DueResult& due : step.due) {
    Sequence& sequence = *due.sequence;
    const bool finished = sequence.state == Sequence::State::finished;
    --sequence.results_due;
    SequenceOutput output;
    if (due.prompt_logprobs > 0) {
      NVLLM_CHECK(logprobs != result.prompts.end() && logprobs->slot == due.slot, "step ",
                  result.number, " lacks prompt logprobs of slot ", due.slot);
      if (!finished) append_prompt_logprobs(sequence, due, *logprobs, output);
      ++logprobs;
    }
    bool ends = false;
    if (due.samples) {
      NVLLM_CHECK(token != result.tokens.end() && token->slot == due.slot, "step ", result.number,
                  " lacks the token of slot ", due.slot);
      if (!finished) ends = append_token(sequence, *token, output);
      ++token;
    }
    if (finished) {
      destroy_if_done(sequence);
      continue;
    }
    output.id = sequence.id;
    output.cached_tokens = sequence.cached_tokens;
    output.preemptions = sequence.preemptions;
    output.residence = sequence.residence;
    outputs.push_back(std::move(output));
    if (ends) finish(sequence);
  }
  NVLLM_CHECK(token == result.tokens.end() && logprobs == result.prompts.end(), "step ",
              result.number, " gave more than its rows sample");
  step.due.clear();
  spare_due_.push_back(std::move(step.due));
  return outputs;
}

// Returns whether this token ends the sequence.
bool Scheduler::append_token(Sequence& sequence, const StepResult::Token& sampled,
                             SequenceOutput& output) {
  --sequence.pending;
  if (sampled.token < 0) {
    output.no_token = true;
    output.finish = FinishReason::abort;
    return true;
  }
  sequence.tokens.push_back(sampled.token);
  output.tokens.push_back(sampled.token);
  if (sequence.rules.logprobs >= 0) output.logprobs.push_back(sampled.logprobs);
  if (sequence.state == Sequence::State::running) memory_.commit(sequence);
  const auto& stops = sequence.stop_tokens;
  if (std::find(stops.begin(), stops.end(), sampled.token) != stops.end())
    output.finish = FinishReason::stop;
  else if (sequence.known() == sequence.max_length)
    output.finish = FinishReason::length;
  return output.finish != FinishReason::none;
}

void Scheduler::append_prompt_logprobs(Sequence& sequence, const DueResult& due,
                                       const StepResult::PromptLogprobs& logprobs,
                                       SequenceOutput& output) {
  NVLLM_CHECK_EQ(static_cast<std::int64_t>(logprobs.tokens.size()), due.prompt_logprobs);
  std::int64_t& sent = sequence.prompt_logprobs_sent;
  const std::int64_t known =
      std::clamp<std::int64_t>(sent - due.first_prompt_logprob, 0, due.prompt_logprobs);
  output.prompt_logprobs.assign(logprobs.tokens.begin() + known, logprobs.tokens.end());
  sent = std::max(sent, due.first_prompt_logprob + due.prompt_logprobs);
}

SchedulerStatistics Scheduler::statistics() const {
  SchedulerStatistics now = statistics_;
  now.waiting = static_cast<std::int64_t>(waiting_.size());
  now.running = static_cast<std::int64_t>(sequences_.size()) - now.waiting;
  now.free_blocks = memory_.device().free_blocks();
  now.total_blocks = memory_.device().total_blocks();
  if (const kvcache::WindowBlocks* windows = memory_.windows()) {
    now.free_window_blocks = windows->free_blocks();
    now.total_window_blocks = windows->total_blocks();
  }
  now.prefix = memory_.device().statistics();
  return now;
}

// --- State transitions of a sequence ---

// Gives the first waiting sequence a slot and blocks.
void Scheduler::start_running(Sequence& sequence) {
  waiting_.pop_front();
  running_.push_back(&sequence);
  sequence.state = Sequence::State::running;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  memory_.allocate(sequence, message_);
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens = static_cast<std::int32_t>(sequence.computed);
    started_.push_back(sequence.id);
  }
  statistics_.recomputed_tokens +=
      static_cast<std::uint64_t>(std::max<std::int64_t>(sequence.lost - sequence.computed, 0));
  sequence.lost = 0;
  sequence.sent = sequence.known();
  message_.started.push_back(
      {.slot = sequence.slot,
       .tokens = sequence.tokens,
       .computed = static_cast<std::int32_t>(sequence.computed),
       .rules = sequence.rules,
       .prompt_logprobs = sequence.wants_prompt_logprobs() ? sequence.prompt_logprobs : -1,
       .resident = static_cast<std::int32_t>(sequence.resident)});
}

// Takes slot and blocks from the newest running sequence. It waits first in line, since all waiting
// sequences are newer.
void Scheduler::preempt(Sequence& sequence) {
  // Copies to the host come first in a message: they must not overwrite host blocks that others are
  // copied from.
  NVLLM_CHECK(message_.swap_in.empty() && message_.windows.swap_in.empty(), "step ",
              statistics_.steps + 1);
  const std::int64_t computed = sequence.computed;
  const bool swap = limits_.preemption == Preemption::swap;
  if (swap && memory_.swap_out(sequence, message_)) {
    statistics_.swapped_blocks += sequence.host_blocks.size();
  } else {
    memory_.free(sequence);
    sequence.lost = std::max(sequence.lost, computed);
    sequence.computed = 0;
  }
  release_slot(sequence);
  running_.pop_back();
  sequence.state = Sequence::State::waiting;
  waiting_.push_front(&sequence);
  ++sequence.preemptions;
  ++statistics_.preemptions;
}

// Slot and blocks are free from the next step on: steps already enqueued still use them.
void Scheduler::stop_running(Sequence& sequence) {
  memory_.free(sequence);
  release_slot(sequence);
  running_.erase(std::find(running_.begin(), running_.end(), &sequence));
}

void Scheduler::release_slot(const Sequence& sequence) {
  message_.ended.push_back(sequence.slot);
  free_slots_.push_back(sequence.slot);
}

void Scheduler::finish(Sequence& sequence) {
  if (sequence.state == Sequence::State::running) stop_running(sequence);
  if (sequence.state == Sequence::State::waiting) {
    memory_.free_host_blocks(sequence);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
  }
  sequence.state = Sequence::State::finished;
  auto node = sequences_.extract(sequence.id);
  if (sequence.results_due > 0) finished_.push_back(std::move(node.mapped()));
}

// A finished sequence is destroyed when no result is due, so that no DueResult points to it.
void Scheduler::destroy_if_done(Sequence& sequence) {
  if (sequence.results_due > 0) return;
  const auto found = std::find_if(finished_.begin(), finished_.end(),
                                  [&](const auto& other) { return other.get() == &sequence; });
  *found = std::move(finished_.back());
  finished_.pop_back();
}

void Scheduler::check_invariants() const {
  using State = Sequence::State;
  std::vector<const Sequence*> all;
  std::vector<int> taken(static_cast<std::size_t>(slots_), 0);
  std::uint64_t newest = 0;
  for (const Sequence* sequence : running_) {
    NVLLM_CHECK(sequence->state == State::running, "sequence ", sequence->id);
    NVLLM_CHECK_LT(newest, sequence->arrival);
    newest = sequence->arrival;
    ++taken.at(sequence->slot);
    NVLLM_CHECK_LT(sequence->length(), sequence->max_length);
    // Does not hold if a decode-only step may run between the chunks of a prompt, or if chunks end
    // at snapshots.
    NVLLM_CHECK(limits_.scheduling == Scheduling::prefill_first || limits_.states.snapshots > 0 ||
                    all.empty() || all.back()->decodes() || !sequence->decodes(),
                "sequence ", sequence->id, " decodes before an older one");
    all.push_back(sequence);
  }
  for (const Sequence* sequence : waiting_) {
    NVLLM_CHECK(sequence->state == State::waiting, "sequence ", sequence->id);
    NVLLM_CHECK_LT(newest, sequence->arrival);
    newest = sequence->arrival;
    NVLLM_CHECK(sequence->computed == 0 || !sequence->host_blocks.empty(), "sequence ",
                sequence->id);
    all.push_back(sequence);
  }
  for (const std::uint32_t slot : free_slots_) ++taken.at(slot);
  for (const int times : taken) NVLLM_CHECK_EQ(times, 1);

  std::size_t finishing = 0;
  for (const auto& [id, sequence] : sequences_) {
    NVLLM_CHECK_EQ(sequence->id, id);
    NVLLM_CHECK_LT(sequence->computed, sequence->length());
    NVLLM_CHECK_LE(sequence->length(), sequence->max_length);
    if (sequence->state != State::finishing) continue;
    ++finishing;
    NVLLM_CHECK(sequence->results_due > 0, "sequence ", id, " waits for a result that never comes");
  }
  NVLLM_CHECK_EQ(sequences_.size(), running_.size() + waiting_.size() + finishing);

  std::int64_t due = 0, expected = 0;
  for (const StepInFlight& step : in_flight_) due += static_cast<std::int64_t>(step.due.size());
  for (const auto& [id, sequence] : sequences_) expected += sequence->results_due;
  for (const auto& sequence : finished_) {
    NVLLM_CHECK(sequence->state == State::finished && sequence->results_due > 0, "sequence ",
                sequence->id);
    expected += sequence->results_due;
  }
  NVLLM_CHECK_EQ(due, expected);
  memory_.check_invariants(all);
}

}  // namespace nvllm::runtime
