#include "launcher/serve/testing/mock_engine.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

namespace nvllm::launcher {

using runtime::FinishReason;
using runtime::Update;

void MockEngine::submit(std::uint64_t first_id, const std::vector<runtime::Request>& requests) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const runtime::Request& request = requests[i];
    if (!refusal_.empty()) {
      immediate_.push_back(
          {.request = first_id + i, .error = refusal_, .internal_error = internal_error_});
      continue;
    }
    for (std::int32_t index = 0; index < request.sampling.n; ++index) {
      answers_.push_back({.request = first_id + i,
                          .index = index,
                          .length = request.sampling.max_tokens.value_or(options_.default_length),
                          .prompt_tokens = static_cast<std::int32_t>(request.prompt.size()),
                          .logprobs = request.sampling.logprobs.value_or(-1),
                          .arrived_ns = now_ns()});
    }
  }
  changed_.notify_one();
}

void MockEngine::abort(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  bool found = false;
  std::erase_if(answers_, [&](const Answer& answer) {
    if (answer.request != id) return false;
    found = true;
    immediate_.push_back({.request = id, .index = answer.index, .finish = FinishReason::abort});
    return true;
  });
  aborted_ += found ? 1 : 0;
  changed_.notify_one();
}

Update MockEngine::next_update(Answer& answer, std::int64_t now) const {
  const std::size_t count = options_.tokens.size();
  const std::int32_t token = options_.tokens[static_cast<std::size_t>(answer.done) % count];
  Update update{.request = answer.request, .index = answer.index, .tokens = {token}};
  if (answer.logprobs >= 0) {
    runtime::TokenLogprobs logprobs{.chosen = {.token = token, .logprob = -0.5F, .rank = 1}};
    for (std::int32_t i = 0; i < answer.logprobs; ++i) {
      logprobs.top.push_back(
          {.token = token + i, .logprob = -0.5F - static_cast<float>(i), .rank = i + 1});
    }
    update.logprobs.push_back(std::move(logprobs));
  }
  if (answer.first_ns == 0) answer.first_ns = now;
  if (++answer.done < answer.length) return update;
  update.finish = FinishReason::length;
  update.times = {.arrived_ns = answer.arrived_ns,
                  .scheduled_ns = answer.arrived_ns,
                  .first_token_ns = answer.first_ns,
                  .last_token_ns = now};
  return update;
}

std::vector<Update> MockEngine::poll(Nanoseconds limit) {
  const std::int64_t before = now_ns();
  if (next_step_ns_ > before) {
    std::this_thread::sleep_for(std::min(limit, Nanoseconds(next_step_ns_ - before)));
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit,
                    [this] { return !immediate_.empty() || (!held_ && !answers_.empty()); });
  std::vector<Update> updates = std::exchange(immediate_, {});
  const std::int64_t now = now_ns();
  if (held_ || answers_.empty() || now < next_step_ns_) return updates;
  ++steps_;
  updates.reserve(updates.size() + answers_.size());
  for (Answer& answer : std::span(answers_).first(running_locked()))
    updates.push_back(next_update(answer, now));
  std::erase_if(answers_, [](const Answer& answer) { return answer.done >= answer.length; });
  next_step_ns_ = now + options_.step.count();
  return updates;
}

runtime::SchedulerStatistics MockEngine::load() const {
  runtime::SchedulerStatistics load;
  {
    const std::lock_guard lock(mutex_);
    load.running = static_cast<std::int64_t>(running_locked());
    load.waiting = std::ssize(answers_) - load.running;
  }
  load.total_blocks = 1 << 20;
  load.free_blocks = load.total_blocks - load.running;
  return load;
}

void MockEngine::hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
  changed_.notify_one();
}

void MockEngine::refuse_with(std::string error, bool internal_error) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(error);
  internal_error_ = internal_error;
}

std::int64_t MockEngine::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(answers_.size());
}

std::uint64_t MockEngine::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

std::uint64_t MockEngine::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

}  // namespace nvllm::launcher
