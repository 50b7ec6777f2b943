// MockEngine: an engine without a model. Each step yields one token for every running answer, at a
// fixed pace, for testing and measuring the server alone.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "launcher/serve/server.h"
#include "runtime/engine/engine_messages.h"

namespace nvllm::launcher {

struct MockEngineOptions {
  Nanoseconds step{0};  // 0: as fast as the server takes them
  // The tokens of an answer, repeated cyclically.
  std::vector<std::int32_t> tokens = {1};
  std::int32_t default_length = 16;  // of answers without max_tokens
  // Maximum answers per step, in order of arrival; the others wait.
  std::int64_t max_num_seqs = std::numeric_limits<std::int64_t>::max();
};

// submit() and abort() may be called by any thread, the rest by the engine's thread.
class MockEngine : public EnginePort {
 public:
  explicit MockEngine(MockEngineOptions options) : options_(std::move(options)) {}

  void submit(std::uint64_t first_id, const std::vector<runtime::Request>& requests) override;
  void abort(std::uint64_t id) override;

  // The updates of the next step; waits for requests up to the limit.
  std::vector<runtime::Update> poll(Nanoseconds limit);
  runtime::SchedulerStatistics load() const;

  // Delays all answers, as a long prefill does.
  void hold(bool held);
  // Rejects requests with this error from now on; empty: no longer. internal_error: the model
  // caused it.
  void refuse_with(std::string error, bool internal_error = false);

  std::int64_t running() const;
  std::uint64_t steps() const;    // that gave tokens
  std::uint64_t aborted() const;  // requests that were aborted before their end

 private:
  struct Answer {
    std::uint64_t request = 0;
    std::int32_t index = 0;
    std::int32_t length = 0;
    std::int32_t done = 0;
    std::int32_t prompt_tokens = 0;
    std::int32_t logprobs = -1;  // alternatives; -1: none wanted
    std::int64_t arrived_ns = 0, first_ns = 0;
  };
  runtime::Update next_update(Answer& answer, std::int64_t now) const;
  // How many answers get a token in a step. The caller holds mutex_.
  std::size_t running_locked() const {
    return static_cast<std::size_t>(std::min(std::ssize(answers_), options_.max_num_seqs));
  }

  const MockEngineOptions options_;
  std::int64_t next_step_ns_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Answer> answers_;
  std::vector<runtime::Update> immediate_;  // rejections, and the ends of aborted requests
  bool held_ = false;
  std::string refusal_;
  bool internal_error_ = false;
  std::uint64_t steps_ = 0;
  std::uint64_t aborted_ = 0;
};

}  // namespace nvllm::launcher
