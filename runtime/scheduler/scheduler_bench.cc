// Host time of a step: schedule(), serializing the message, complete(). Measured per step of all
// sequences.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ipc/archive.h"
#include "runtime/scheduler/scheduler.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {
namespace {

constexpr std::int64_t kBlockSize = 16;
constexpr std::int64_t kLength = 4096;

SchedulerLimits limits_for(std::int64_t sequences) {
  return {.max_model_len = kLength,
          .max_num_seqs = sequences,
          .max_num_batched_tokens = sequences * 2 * kBlockSize,  // all prompts in one step
          .max_logit_rows = sequences,
          .blocks = sequences * (kLength / kBlockSize + 1),
          .block_size = kBlockSize,
          .host_blocks = 0,
          .prefix_caching = true,
          .scheduling = Scheduling::mixed,
          .preemption = Preemption::recompute};
}

void add_sequences(Scheduler& scheduler, std::int64_t count, SequenceId& next_id) {
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence sequence;
    sequence.id = ++next_id;
    // Lengths differ, so that every step appends blocks to some sequences.
    const auto prompt = static_cast<std::int32_t>(8 + i % kBlockSize);
    for (std::int32_t token = 0; token < prompt; ++token)
      sequence.tokens.push_back(static_cast<std::int32_t>(next_id * 31) + token);
    sequence.rules.prompt_length = prompt;
    sequence.max_tokens = kLength;
    sequence.stop_tokens = {1, 2};
    scheduler.add(std::move(sequence));
  }
}

// The results that a rank would return, without a model.
class Results {
 public:
  void follow(const StepMessage& message) {
    if (message.same_rows) {
      std::erase_if(slots_, [&](std::uint32_t slot) {
        return std::find(message.ended.begin(), message.ended.end(), slot) != message.ended.end();
      });
    } else {
      slots_.clear();
      for (const StepRows& rows : message.rows) slots_.push_back(rows.slot);
    }
    StepResult result;
    result.number = message.number;
    for (const std::uint32_t slot : slots_) result.tokens.push_back({slot, ++token_, {}});
    results_.push_back(std::move(result));
  }
  StepResult take() {
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

 private:
  std::vector<std::uint32_t> slots_;
  std::deque<StepResult> results_;
  std::int32_t token_ = 100;
};

// Decode steps, one step ahead.
void decode(benchmark::State& state) {
  const std::int64_t sequences = state.range(0);
  Scheduler scheduler(limits_for(sequences));
  Results results;
  SequenceId next_id = 0;
  ipc::ArchiveWriter bytes;
  std::size_t message_bytes = 0;
  for (auto _ : state) {
    if (scheduler.idle()) {  // all have reached their length
      state.PauseTiming();
      while (scheduler.in_flight() > 0) scheduler.complete(results.take());
      add_sequences(scheduler, sequences, next_id);
      for (int step = 0; step < 2; ++step) results.follow(*scheduler.schedule());
      state.ResumeTiming();
    }
    const std::optional<StepMessage> message = scheduler.schedule();
    if (message) {
      bytes.clear();
      bytes(*message);
      message_bytes += bytes.bytes().size();
      state.PauseTiming();
      results.follow(*message);
      state.ResumeTiming();
    }
    state.PauseTiming();
    const StepResult result = results.take();
    state.ResumeTiming();
    benchmark::DoNotOptimize(scheduler.complete(result));
  }
  state.counters["message_bytes"] =
      static_cast<double>(message_bytes) / static_cast<double>(state.iterations());
}
BENCHMARK(decode)->Arg(1)->Arg(16)->Arg(256)->Arg(1024)->Unit(benchmark::kMicrosecond);

// Prompts that arrive and finish prefill in one step.
void admit_prompts(benchmark::State& state) {
  const std::int64_t sequences = state.range(0);
  SequenceId next_id = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto scheduler = std::make_unique<Scheduler>(limits_for(sequences));
    add_sequences(*scheduler, sequences, next_id);
    state.ResumeTiming();
    benchmark::DoNotOptimize(scheduler->schedule());
    state.PauseTiming();
    scheduler.reset();
    state.ResumeTiming();
  }
}
BENCHMARK(admit_prompts)->Arg(256)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace nvllm::runtime
