// RequestTracker: the requests that are under way, on rank 0. It checks what is asked, makes
// sequences of it, and writes what the scheduler says of the sequences as updates of the requests.
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

// What requests must agree with.
struct RequestLimits {
  std::int64_t vocabulary = 0;
  std::vector<std::int32_t> eos_ids;
  std::uint64_t seed = 0;  // of requests that have none
  KvMode kv_mode = KvMode::paged;
};

// The seed of a request that has none: another one for each number.
std::uint64_t derived_seed(std::uint64_t seed, std::uint64_t request);

// Used by one thread. Times are now_ns().
class RequestTracker {
 public:
  explicit RequestTracker(RequestLimits limits) : limits_(std::move(limits)) {}

  // The request's sequences, one per answer, with ids of the book's own. An Error says why it is
  // refused; then it is as if it had never been asked.
  std::vector<Sequence> open(std::uint64_t id, Request request, std::int64_t now);
  bool knows(std::uint64_t id) const { return requests_.contains(id); }

  // The sequence's first row has been enqueued.
  void scheduled(SequenceId sequence, std::int64_t now);
  // What is new of a sequence, as the update of its request.
  void report(SequenceOutput progress, std::int64_t now, std::vector<Update>& updates);
  // Ends what is not over of a request; `sequences` are those to be ended.
  struct Closed {
    std::vector<SequenceId> sequences;
    std::vector<Update> updates;  // one of each, as aborted
  };
  Closed close(std::uint64_t id, std::int64_t now);

  std::size_t size() const { return requests_.size(); }
  std::uint64_t prompt_tokens() const { return prompt_tokens_; }        // of all that were taken
  std::uint64_t generated_tokens() const { return generated_tokens_; }  // so far

 private:
  struct Answer {
    std::uint64_t request = 0;
    std::int32_t index = 0;
    RequestTimes times;
    std::vector<TokenLogprobs> prompt_logprobs;  // until the first token
    Residence residence = Residence::none;
  };

  void check(const Request& request) const;
  void check_ids(std::span<const std::int32_t> ids, const char* what) const;
  layers::SamplingRules rules_of(const Request& request, std::uint64_t seed) const;
  void forget(SequenceId sequence);

  RequestLimits limits_;
  std::unordered_map<SequenceId, Answer> answers_;                       // that are not over
  std::unordered_map<std::uint64_t, std::vector<SequenceId>> requests_;  // theirs
  SequenceId last_sequence_ = 0;
  std::uint64_t prompt_tokens_ = 0, generated_tokens_ = 0;
};

}  // namespace nvllm::runtime
