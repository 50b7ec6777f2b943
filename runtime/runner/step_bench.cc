// Host time of a step on rank 0 and on every rank: writing and reading messages, applying and
// staging a step. Measured per decode step of 256 sequences, one in 16 of which gets a new block.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "device/backend.h"
#include "ipc/archive.h"
#include "runtime/runner/decode_graphs.h"
#include "runtime/runner/slot_table.h"
#include "runtime/runner/step_staging.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {
namespace {

constexpr std::uint32_t kSequences = 256;
constexpr std::int64_t kBlockSize = 16, kMaxLength = 40960, kPrompt = 1000;

// Starts all sequences, with all blocks that they will need.
StepMessage first_message(std::int64_t blocks) {
  StepMessage message;
  message.number = 1;
  for (std::uint32_t slot = 0; slot < kSequences; ++slot) {
    SlotStart& start = message.started.emplace_back();
    start.slot = slot;
    start.tokens.assign(kPrompt, 17);
    start.computed = kPrompt - 1;
    start.rules.prompt_length = kPrompt;
    for (std::int64_t i = 0; i < blocks; ++i) {
      message.blocks.push_back({slot, static_cast<kvcache::BlockId>(i)});
    }
    message.rows.push_back({slot, 1});
  }
  return message;
}

StepMessage decode_message() {
  StepMessage message;
  message.number = 123456;
  message.same_rows = true;
  for (std::uint32_t slot = 0; slot < kSequences; slot += 16) {
    message.blocks.push_back({slot, 4711});
  }
  return message;
}

void BM_StepMessage(benchmark::State& state, const StepMessage& message) {
  ipc::ArchiveWriter out;
  for (auto _ : state) {
    out.clear();
    out(message);
    ipc::ArchiveReader in(out.bytes());
    benchmark::DoNotOptimize(in.get<StepMessage>());
  }
  state.counters["bytes"] = static_cast<double>(out.bytes().size());
}

void BM_StageDecodeStep(benchmark::State& state) {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  StepStaging staging(*backend, {.max_model_len = kMaxLength,
                                 .max_num_seqs = kSequences,
                                 .max_num_batched_tokens = 8192,
                                 .max_logit_rows = kSequences,
                                 .block_size = kBlockSize});
  SlotTable slots(kSequences, kMaxLength, kBlockSize);
  const DecodeGraphs graphs(*backend, kSequences, kMaxLength);
  const kvcache::PagedCache cache(
      *backend, {.layers = 1, .block_size = kBlockSize, .kv_heads = 1, .head_dim = 8}, 1, 0);
  slots.apply(first_message(kMaxLength / kBlockSize));
  StepMessage message;
  message.same_rows = true;
  const auto step = [&] {
    StepShape shape = shape_of(slots.parts());
    shape.sequences = graphs.kind_of(shape.sequences, shape.max_kv_length).sequences;
    staging.load(slots.parts(), slots, shape, 0, cache, *stream, nullptr);
  };
  step();
  std::int64_t length = kPrompt;
  for (auto _ : state) {
    slots.apply(message);
    step();
    if (++length < kMaxLength - 1) continue;
    state.PauseTiming();
    for (std::uint32_t slot = 0; slot < kSequences; ++slot) slots[slot].computed = length = kPrompt;
    state.ResumeTiming();
  }
  stream->synchronize();  // pending copies read memory that is freed next
}

// Registers all benchmarks at program start.
const bool registered = [] {
  benchmark::RegisterBenchmark("step_message/decode:256", [](benchmark::State& state) {
    BM_StepMessage(state, decode_message());
  });
  benchmark::RegisterBenchmark("step_message/start:256", [](benchmark::State& state) {
    BM_StepMessage(state, first_message(64));
  });
  benchmark::RegisterBenchmark("step_staging/decode:256", BM_StageDecodeStep);
  return true;
}();

}  // namespace
}  // namespace nvllm::runtime
