// Adjusting logits, in bytes of logits per second, as if all were read and written once. The history is of
// 1000 tokens.
#include "kernels/sampling/apply_penalties.h"
#include "kernels/sampling/testing/sampling_bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

constexpr std::int64_t kBlockSize = 16, kBlocks = 64;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t vocabulary,
             std::uint32_t flags) {
  SlotParams params;
  params.flags = SlotParams::kChangesLogits | flags;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.5f;
  const testing::SamplingBench there(bench, rows, vocabulary, params);
  ApplyPenalties args;
  args.rows = there.rows;
  args.lists = bench.tensor(DType::i32, {rows, 64});
  args.allowed = bench.tensor(DType::i32, {rows, (vocabulary + 31) / 32});
  std::vector<std::int32_t> tokens, table;
  for (std::int32_t i = 0; i < kBlocks * kBlockSize; ++i) tokens.push_back(i * 7919 % 40'000);
  for (std::int64_t i = 0; i < rows * kBlocks; ++i) {
    table.push_back(static_cast<std::int32_t>(i % kBlocks));
  }
  args.history = TensorView(bench.tensor(tokens).data, DType::i32, {kBlocks, kBlockSize});
  args.block_table = TensorView(bench.tensor(table).data, DType::i32, {rows, kBlocks});
  bench.run(2 * there.bytes(), [&] { apply_penalties(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const std::uint32_t flags : {SlotParams::kPenalties, SlotParams::kAllowed}) {
    testing::register_sampling("apply_penalties",
                               flags == SlotParams::kPenalties ? "penalties" : "allowed",
                               [=](GraphBenchmark& bench, std::int64_t rows, std::int64_t own) {
                                 measure(bench, rows, own, flags);
                               });
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
