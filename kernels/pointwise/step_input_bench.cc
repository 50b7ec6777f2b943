// Step input of decode steps, and of prompts of 8,192 tokens in all.
#include "kernels/pointwise/step_input.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;
using Ints = std::vector<std::int32_t>;

void measure(GraphBenchmark& bench, std::int64_t sequences, std::int32_t rows) {
  constexpr std::int64_t kTableBlocks = 2560, kBlockSize = 16;
  constexpr std::int32_t kPosition = 1024;
  const auto spaced = [&](std::int64_t count, std::int32_t step) {
    Ints values(count);
    for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(i) * step;
    return values;
  };
  StepInput args;
  args.slots = bench.tensor(spaced(sequences, 1));
  args.query_start = bench.tensor(spaced(sequences + 1, rows));
  args.first_position = bench.tensor(Ints(sequences, rows == 1 ? kPosition : 0));
  args.first_token = bench.tensor(rows == 1 ? Ints(sequences, -1) : spaced(sequences, rows));
  const auto blocks = static_cast<std::int32_t>((rows + kBlockSize - 1) / kBlockSize);
  args.first_block = bench.tensor(Ints(sequences, rows == 1 ? kPosition / kBlockSize : 0));
  args.block_start = bench.tensor(spaced(sequences + 1, blocks));
  args.new_tokens = bench.tensor(spaced(sequences * rows, 1));
  args.new_blocks = bench.tensor(spaced(sequences * blocks, 1));
  args.max_query_rows = rows;
  args.last_tokens = bench.tensor(Ints(sequences, 5));
  args.table = bench.tensor(DType::i32, {sequences, kTableBlocks});
  args.history = bench.tensor(DType::i32, {sequences * blocks, kBlockSize});
  args.tokens = bench.tensor(DType::i32, {sequences * rows});
  args.positions = bench.tensor(DType::i32, {sequences * rows});
  args.places = bench.tensor(DType::i64, {sequences * rows});
  args.kv_length = bench.tensor(DType::i32, {sequences});
  args.block_table = bench.tensor(DType::i32, {sequences, kTableBlocks});
  const std::size_t gathered = sequences * (rows == 1 ? kPosition / kBlockSize : blocks);
  bench.run(sequences * rows * 20 + gathered * 8, [&] { step_input(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const auto& [sequences, rows] : {std::pair{1, 1}, {256, 1}, {1, 8192}, {8, 1024}}) {
      testing::register_benchmark("step_input", kind, DType::i32,
                                  std::to_string(sequences) + "x" + std::to_string(rows),
                                  [sequences = sequences, rows = rows](GraphBenchmark& bench) {
                                    measure(bench, sequences, rows);
                                  });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
