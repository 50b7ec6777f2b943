#include "benchmarks/simulation/replica.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nvllm::simulation {

Replica::Replica(const EngineModel& engine)
    : engine_(engine), scheduler_(engine.limits), rank_(engine.limits.max_num_seqs) {}

void Replica::submit(runtime::SequenceId id, std::vector<std::int32_t> prompt,
                     std::int64_t max_tokens) {
  runtime::Sequence sequence;
  sequence.id = id;
  sequence.tokens = std::move(prompt);
  sequence.rules.prompt_length = static_cast<std::int32_t>(sequence.tokens.size());
  sequence.max_tokens = static_cast<std::int32_t>(max_tokens);
  scheduler_.add(std::move(sequence));
}

std::optional<double> Replica::next_end() const {
  if (steps_.empty()) return std::nullopt;
  return steps_.front().end;
}

std::vector<runtime::SequenceOutput> Replica::finish_step() {
  NVLLM_CHECK(!steps_.empty(), "no step is in flight");
  const Step step = steps_.front();
  steps_.pop_front();
  busy_s_ += step.seconds;
  work_ += step.work;
  std::vector<runtime::SequenceOutput> outputs = scheduler_.complete(rank_.take_result());
  enqueue_steps(step.end);
  NVLLM_CHECK(!steps_.empty() || scheduler_.idle(), "there are requests, but no step for them");
  return outputs;
}

void Replica::enqueue_steps(double now) {
  const std::size_t in_flight = engine_.async_scheduling ? 2 : 1;
  while (steps_.size() < in_flight) {
    const std::optional<runtime::StepMessage> message = scheduler_.schedule();
    if (!message) return;
    Step step{.work = rank_.follow(*message)};
    step.seconds = engine_.time.seconds(step.work);
    device_free_ = std::max(device_free_, now) + step.seconds;
    step.end = device_free_;
    steps_.push_back(step);
  }
}

}  // namespace nvllm::simulation
