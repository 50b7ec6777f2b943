#include "runtime/engine/request_tracker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"

namespace nvllm::runtime {
namespace {

static_assert(layers::SamplerLimits{}.max_logprobs == kMaxLogprobs);

void check_logprobs(const std::optional<std::int32_t>& logprobs, const char* what) {
  if (logprobs && *logprobs > kMaxLogprobs) {
    fail(what, " ", *logprobs, " is more than is reported; ask for ", kMaxLogprobs,
         " alternatives at most");
  }
}

}  // namespace

std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t request) {
  return split_mix(seed + kSplitMixStep * request);
}

void RequestTracker::check_ids(std::span<const std::int32_t> ids, const char* what) const {
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < limits_.vocabulary) continue;
    fail(what, " holds token id ", id, "; the vocabulary's ids are 0 to ", limits_.vocabulary - 1);
  }
}

void RequestTracker::check(const Request& request) const {
  const SamplingParams& sampling = request.sampling;
  check_sampling_params(sampling);
  check_ids(request.prompt, "the prompt");
  check_ids(sampling.stop_token_ids, "stop_token_ids");
  check_ids(sampling.allowed_token_ids, "allowed_token_ids");
  for (const auto& word : sampling.bad_words) check_ids(word, "bad_words");
  for (const auto& bias : sampling.logit_bias) check_ids({&bias.first, 1}, "logit_bias");
  check_logprobs(sampling.logprobs, "logprobs");
  check_logprobs(sampling.prompt_logprobs, "prompt_logprobs");
}

layers::SamplingRules RequestTracker::rules_of(const Request& request, std::uint64_t seed) const {
  const SamplingParams& sampling = request.sampling;
  const auto prompt_length = static_cast<std::int32_t>(request.prompt.size());
  layers::SamplingRules rules{
      .temperature = static_cast<float>(sampling.temperature),
      .min_p = static_cast<float>(sampling.min_p),
      .top_k = std::max(sampling.top_k, 0),
      .top_p = static_cast<float>(sampling.top_p),
      .repetition_penalty = static_cast<float>(sampling.repetition_penalty),
      .presence_penalty = static_cast<float>(sampling.presence_penalty),
      .frequency_penalty = static_cast<float>(sampling.frequency_penalty),
      .seed = seed,
      .prompt_length = prompt_length,
      .min_length = 0,
      .logprobs = sampling.logprobs.value_or(-1),
      .ends = {},
      .bias = sampling.logit_bias,
      .allowed = sampling.allowed_token_ids,
      .bad_words = sampling.bad_words,
  };
  if (sampling.min_tokens > 0) {
    const std::int64_t min_length = std::int64_t{prompt_length} + sampling.min_tokens;
    rules.min_length = static_cast<std::int32_t>(
        std::min<std::int64_t>(min_length, std::numeric_limits<std::int32_t>::max()));
    if (!sampling.ignore_eos) rules.ends = limits_.eos_ids;
    rules.ends.insert(rules.ends.end(), sampling.stop_token_ids.begin(),
                      sampling.stop_token_ids.end());
  }
  if (const std::int64_t words = list_words(rules); words > layers::SamplerLimits::kListWords) {
    fail("logit_bias, bad_words and ends take ", words, " words together; at most ",
         layers::SamplerLimits::kListWords,
         " are possible (a bias takes two, a bad word its length and one, an end one)");
  }
  return rules;
}

std::vector<Sequence> RequestTracker::open(std::uint64_t id, Request request, std::int64_t now) {
  if (requests_.contains(id)) fail("request ", id, " is under way already");
  check(request);
  const SamplingParams& sampling = request.sampling;
  const std::uint64_t seed = sampling.seed.value_or(derived_seed(limits_.seed, id));
  Sequence first{
      .id = 0,
      .tokens = {},
      .rules = rules_of(request, seed),
      .max_tokens = sampling.max_tokens.value_or(std::numeric_limits<std::int32_t>::max()),
      .stop_tokens = sampling.stop_token_ids,
      .prompt_logprobs = sampling.prompt_logprobs.value_or(-1),
  };
  if (!sampling.ignore_eos) {
    first.stop_tokens.insert(first.stop_tokens.end(), limits_.eos_ids.begin(),
                             limits_.eos_ids.end());
  }
  first.tokens = std::move(request.prompt);

  std::vector<Sequence> sequences(static_cast<std::size_t>(sampling.n) - 1, first);
  sequences.push_back(std::move(first));
  std::vector<SequenceId>& ids = requests_[id];  // only now: copies may take too much memory
  for (std::int32_t index = 0; index < sampling.n; ++index) {
    Sequence& sequence = sequences[static_cast<std::size_t>(index)];
    sequence.id = ++last_sequence_;
    sequence.rules.seed = seed + static_cast<std::uint64_t>(index);
    // The sequences share the prompt; prompt log-probabilities are reported with the first
    // sequence.
    if (index > 0) sequence.prompt_logprobs = -1;
    answers_[sequence.id] = {.request = id,
                             .index = index,
                             .times = {.arrived_ns = now},
                             .prompt_logprobs = {},
                             .residence = {}};
    ids.push_back(sequence.id);
  }
  return sequences;
}

std::optional<std::uint64_t> RequestTracker::request_of(SequenceId sequence) const {
  const auto found = answers_.find(sequence);
  return found == answers_.end() ? std::nullopt : std::optional(found->second.request);
}

void RequestTracker::note_scheduled(SequenceId sequence, std::int64_t now) {
  const auto found = answers_.find(sequence);
  if (found != answers_.end() && found->second.times.scheduled_ns == 0) {
    found->second.times.scheduled_ns = now;
  }
}

void RequestTracker::add_update(SequenceOutput output, std::int64_t now,
                                std::vector<Update>& updates) {
  const auto found = answers_.find(output.id);
  NVLLM_CHECK(found != answers_.end(), "sequence ", output.id, " belongs to no request");
  Answer& answer = found->second;
  // An abort from outside does not carry the residence.
  if (output.finish != FinishReason::abort) answer.residence = output.residence;
  auto& kept = answer.prompt_logprobs;
  kept.insert(kept.end(), std::make_move_iterator(output.prompt_logprobs.begin()),
              std::make_move_iterator(output.prompt_logprobs.end()));
  if (output.tokens.empty() && output.finish == FinishReason::none) return;

  generated_tokens_ += output.tokens.size();
  if (!output.tokens.empty()) {
    if (answer.times.first_token_ns == 0) answer.times.first_token_ns = now;
    answer.times.last_token_ns = now;
  }
  Update& update = updates.emplace_back();
  update.request = answer.request;
  update.index = answer.index;
  update.tokens = std::move(output.tokens);
  update.logprobs = std::move(output.logprobs);
  update.prompt_logprobs = std::exchange(kept, {});
  update.finish = output.finish;
  if (output.finish == FinishReason::none) return;
  update.cached_tokens = output.cached_tokens;
  update.preemptions = output.preemptions;
  update.kv_mode = name_of(limits_.kv_mode, answer.residence);
  update.times = answer.times;
  forget(output.id);
}

RequestTracker::Closed RequestTracker::close(std::uint64_t id, std::int64_t now) {
  Closed closed;
  const auto found = requests_.find(id);
  if (found == requests_.end()) return closed;
  closed.sequences = found->second;
  for (const SequenceId sequence : closed.sequences) {
    SequenceOutput end;
    end.id = sequence;
    end.finish = FinishReason::abort;
    add_update(std::move(end), now, closed.updates);
  }
  return closed;
}

void RequestTracker::forget(SequenceId sequence) {
  const auto answer = answers_.find(sequence);
  const auto request = requests_.find(answer->second.request);
  std::erase(request->second, sequence);
  if (request->second.empty()) requests_.erase(request);
  answers_.erase(answer);
}

}  // namespace nvllm::runtime
