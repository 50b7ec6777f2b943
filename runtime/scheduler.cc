#include "runtime/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "runtime/scheduler_state.h"

namespace nvllm::runtime {

Scheduler::State::State(const SchedulerLimits& given)
    : limits(given),
      slots(std::min({given.max_num_seqs, given.max_num_batched_tokens, given.max_logit_rows})),
      memory_(given) {
  NVLLM_CHECK(slots > 0 && limits.max_model_len > 0 && limits.blocks > 0, "max_num_seqs ",
              limits.max_num_seqs, ", max_num_batched_tokens ", limits.max_num_batched_tokens,
              ", max_logit_rows ", limits.max_logit_rows, ", max_model_len ", limits.max_model_len,
              ", blocks ", limits.blocks);
  for (std::int64_t slot = slots; slot-- > 0;)
    free_slots_.push_back(static_cast<std::uint32_t>(slot));
  slot_ended_.resize(static_cast<std::size_t>(slots));
}

// Tokens that the sequence may have in all. At least one more than the prompt, or an Error.
std::int64_t Scheduler::State::room_for_answer(const NewSequence& sequence) const {
  const auto prompt = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t cache = limits.blocks * limits.block_size;
  if (prompt == 0) fail("prompt of 0 tokens: there is nothing to go on from; pass at least one");
  if (sequence.max_tokens < 1)
    fail("max_tokens ", sequence.max_tokens, ": an answer has at least one token; pass 1 or more");
  if (prompt >= limits.max_model_len)
    fail("prompt of ", prompt, " tokens: max_model_len is ", limits.max_model_len,
         ", which leaves no room for an answer; pass --max-model-len ", prompt + 1,
         " or more, or a shorter prompt");
  if (prompt >= cache)
    fail("prompt of ", prompt, " tokens: the whole KV cache holds ", cache, " (", limits.blocks,
         " blocks of ", limits.block_size,
         "), which leaves no room for an answer; raise --gpu-memory-utilization or "
         "--kv-cache-memory-bytes, or pass a shorter prompt");
  return std::min({prompt + sequence.max_tokens, limits.max_model_len, cache});
}

void Scheduler::State::add(NewSequence given) {
  const std::int64_t limit = room_for_answer(given);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = given.id;
  sequence->number = ++arrivals_;
  sequence->prompt = static_cast<std::int64_t>(given.tokens.size());
  sequence->limit = limit;
  sequence->tokens = std::move(given.tokens);
  sequence->rules = std::move(given.rules);
  sequence->stop_tokens = std::move(given.stop_tokens);
  sequence->prompt_logprobs = given.prompt_logprobs;
  waiting_.push_back(sequence.get());
  const bool inserted = sequences.emplace(given.id, std::move(sequence)).second;
  NVLLM_CHECK(inserted, "sequence ", given.id, " was added twice");
}

std::vector<Progress> Scheduler::State::complete(const StepResult& result) {
  NVLLM_CHECK(!in_flight.empty(), "result of step ", result.number, ", but none is in flight");
  StepsInFlight::Step step = in_flight.take_oldest();
  NVLLM_CHECK_EQ(result.number, step.number);
  std::vector<Progress> progress;
  progress.reserve(step.due.size());
  auto token = result.tokens.begin();
  auto scores = result.prompts.begin();
  for (const DueResult& due : step.due) {
    Sequence& sequence = *due.sequence;
    const bool over = sequence.place == Sequence::Place::over;
    --sequence.results_due;
    Progress news;
    if (due.scored > 0) {
      NVLLM_CHECK(scores != result.prompts.end() && scores->slot == due.slot, "step ",
                  result.number, " lacks prompt logprobs of slot ", due.slot);
      if (!over) take_scores(sequence, due, *scores, news);
      ++scores;
    }
    bool ends = false;
    if (due.draws) {
      NVLLM_CHECK(token != result.tokens.end() && token->slot == due.slot, "step ", result.number,
                  " lacks the token of slot ", due.slot);
      if (!over) ends = take_token(sequence, *token, news);
      ++token;
    }
    if (over) {
      forget(sequence);
      continue;
    }
    news.id = sequence.id;
    news.cached_tokens = sequence.cached_tokens;
    news.preemptions = sequence.preemptions;
    news.residence = sequence.residence;
    progress.push_back(std::move(news));
    if (ends) end(sequence);
  }
  NVLLM_CHECK(token == result.tokens.end() && scores == result.prompts.end(), "step ",
              result.number, " gave more than its rows draw");
  in_flight.give_back(std::move(step));
  return progress;
}

// Whether the sequence ends with it.
bool Scheduler::State::take_token(Sequence& sequence, const StepResult::Token& drawn,
                                  Progress& news) {
  --sequence.drawing;
  sequence.tokens.push_back(drawn.token);
  news.tokens.push_back(drawn.token);
  if (sequence.rules.logprobs >= 0) news.logprobs.push_back(drawn.logprobs);
  if (sequence.place == Sequence::Place::running) memory_.commit(sequence);
  const auto& stops = sequence.stop_tokens;
  if (std::find(stops.begin(), stops.end(), drawn.token) != stops.end())
    news.finish = FinishReason::stop;
  else if (sequence.known() == sequence.limit)
    news.finish = FinishReason::length;
  return news.finish != FinishReason::none;
}

// Those of a prompt that is computed again were passed on before.
void Scheduler::State::take_scores(Sequence& sequence, const DueResult& due,
                                   const StepResult::PromptLogprobs& scores, Progress& news) {
  NVLLM_CHECK_EQ(static_cast<std::int64_t>(scores.tokens.size()), due.scored);
  const std::int64_t known =
      std::clamp<std::int64_t>(sequence.scored - due.first_scored, 0, due.scored);
  news.prompt_logprobs.assign(scores.tokens.begin() + known, scores.tokens.end());
  sequence.scored = std::max(sequence.scored, due.first_scored + due.scored);
}

// Of a sequence that is over: when nothing is due any more, nobody points to it.
void Scheduler::State::forget(Sequence& sequence) {
  if (sequence.results_due > 0) return;
  const auto found = std::find_if(over_.begin(), over_.end(),
                                  [&](const auto& other) { return other.get() == &sequence; });
  *found = std::move(over_.back());
  over_.pop_back();
}

SchedulerStatistics Scheduler::State::statistics() const {
  SchedulerStatistics now = statistics_;
  now.waiting = static_cast<std::int64_t>(waiting_.size());
  now.running = static_cast<std::int64_t>(sequences.size()) - now.waiting;
  now.free_blocks = memory_.device().free_blocks();
  now.total_blocks = memory_.device().total_blocks();
  now.prefix = memory_.device().statistics();
  return now;
}

Scheduler::Scheduler(const SchedulerLimits& limits) : state_(std::make_unique<State>(limits)) {}
Scheduler::~Scheduler() = default;

void Scheduler::add(NewSequence sequence) {
  state_->add(std::move(sequence));
}

bool Scheduler::abort(SequenceId id) {
  const auto found = state_->sequences.find(id);
  if (found == state_->sequences.end()) return false;
  state_->end(*found->second);
  return true;
}

std::optional<StepMessage> Scheduler::schedule() {
  return state_->schedule();
}
std::span<const SequenceId> Scheduler::started() const {
  return state_->started;
}
std::vector<Progress> Scheduler::complete(const StepResult& result) {
  return state_->complete(result);
}

bool Scheduler::idle() const {
  return state_->sequences.empty();
}
std::int64_t Scheduler::in_flight() const {
  return state_->in_flight.size();
}
SchedulerStatistics Scheduler::statistics() const {
  return state_->statistics();
}
const SchedulerLimits& Scheduler::limits() const {
  return state_->limits;
}
void Scheduler::check_invariants() const {
  state_->check_invariants();
}

}  // namespace nvllm::runtime
