// Sending a step message from rank 0 to three other ranks that busy-wait: its size, and the time
// from before it is encoded until all of them have read it completely. For 256 sequences.
//
//   steady    all decode, and one in 16 gets a block
//   changing  the same, but one in 16 ends and a new one with a prompt of 16 tokens replaces it, so
//             that the message lists all rows
#include <benchmark/benchmark.h>

#include <cstdint>

#include "ipc/archive.h"
#include "ipc/registry.h"
#include "ipc/testing/bench_processes.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {
namespace {

constexpr std::uint32_t kSequences = 256, kOneIn = 16;

StepMessage steady_step() {
  StepMessage message;
  message.number = 1;
  message.same_rows = true;
  for (std::uint32_t slot = 0; slot < kSequences; slot += kOneIn) {
    message.blocks.push_back({.slot = slot, .block = 7});
  }
  return message;
}

StepMessage changing_step() {
  StepMessage message = steady_step();
  message.same_rows = false;
  for (std::uint32_t slot = 0; slot < kSequences; slot += kOneIn) {
    message.ended.push_back(slot);
    SlotStart& start = message.started.emplace_back();
    start.slot = slot;
    start.tokens.assign(16, 5);
  }
  for (std::uint32_t slot = 0; slot < kSequences; ++slot) {
    message.rows.push_back({.slot = slot, .rows = slot % kOneIn == 0 ? 16U : 1U});
  }
  return message;
}

void send_steps(benchmark::State& state, const StepMessage& message) {
  ipc::ArchiveWriter writer;
  ipc::measure_calls(state, 3, ipc::kForEver, Nanoseconds(0), [&](ipc::RingWriter& ring) {
    writer.clear();
    writer(std::uint8_t{1}, std::uint64_t{1});  // the header that GroupCaller writes
    ipc::write_call(writer, "step", message);
    ring.send(writer.bytes());
  });
  state.counters["bytes"] = static_cast<double>(writer.bytes().size());
}

void BM_SteadyStep(benchmark::State& state) {
  send_steps(state, steady_step());
}
BENCHMARK(BM_SteadyStep)->Iterations(20'000)->UseManualTime();

void BM_ChangingStep(benchmark::State& state) {
  send_steps(state, changing_step());
}
BENCHMARK(BM_ChangingStep)->Iterations(20'000)->UseManualTime();

}  // namespace
}  // namespace nvllm::runtime
