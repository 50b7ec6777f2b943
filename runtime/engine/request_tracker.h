// RequestTracker: the unfinished requests, on rank 0. It validates a request, creates a sequence
// for each of its answers, and turns the scheduler's outputs for these sequences into updates of
// the request.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/options.h"
#include "runtime/request.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {

// Limits of the model and the engine that requests are checked against.
struct RequestLimits {
  std::int64_t vocabulary = 0;
  std::vector<std::int32_t> eos_ids;
  std::uint64_t seed = 0;  // for requests without a seed
  KvMode kv_mode = KvMode::paged;
};

// The seed of a request that specifies none; it differs between requests.
std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t request);

// Used by one thread. Times are from now_ns().
class RequestTracker {
 public:
  explicit RequestTracker(RequestLimits limits) : limits_(std::move(limits)) {}

  // Creates the request's sequences, one per answer, with new sequence ids. Throws an Error if the
  // request is refused; nothing of it is stored then.
  std::vector<Sequence> open(std::uint64_t id, Request request, std::int64_t now);
  bool knows(std::uint64_t id) const { return requests_.contains(id); }
  // The unfinished request that a sequence belongs to, if any.
  std::optional<std::uint64_t> request_of(SequenceId sequence) const;

  // Records when the sequence's first row was enqueued.
  void note_scheduled(SequenceId sequence, std::int64_t now);
  // Appends an update of the request for the sequence's output, if there is anything to report.
  void add_update(SequenceOutput output, std::int64_t now, std::vector<Update>& updates);
  // Closes the unfinished sequences of a request; the caller aborts them in the scheduler.
  struct Closed {
    std::vector<SequenceId> sequences;
    std::vector<Update> updates;  // one for each sequence, with FinishReason::abort
  };
  Closed close(std::uint64_t id, std::int64_t now);

  std::size_t size() const { return requests_.size(); }
  std::uint64_t generated_tokens() const { return generated_tokens_; }  // so far

 private:
  struct Answer {
    std::uint64_t request = 0;
    std::int32_t index = 0;
    RequestTimes times;
    std::vector<TokenLogprobs> prompt_logprobs;  // kept until the first token
    Residence residence = Residence::none;
  };

  void check(const Request& request) const;
  void check_ids(std::span<const std::int32_t> ids, const char* what) const;
  layers::SamplingRules rules_of(const Request& request, std::uint64_t seed) const;
  void forget(SequenceId sequence);

  RequestLimits limits_;
  std::unordered_map<SequenceId, Answer> answers_;                       // unfinished ones
  std::unordered_map<std::uint64_t, std::vector<SequenceId>> requests_;  // by id
  SequenceId last_sequence_ = 0;
  std::uint64_t generated_tokens_ = 0;
};

}  // namespace nvllm::runtime
