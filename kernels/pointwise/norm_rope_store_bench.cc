// Norms, rotation and store in bytes per second: q, k and v read, q written, k and v written to the cache;
// weights, cosines and sines aside. 32 and 8 heads of 128: Qwen3-4B and 8B; "plain": without norms.
#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, DType dtype, bool norm) {
  constexpr std::int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
  constexpr std::int64_t kPositions = 40'960, kBlockSize = 256;
  const std::int64_t blocks = (rows + kBlockSize - 1) / kBlockSize;
  // Sequences of 1024 tokens; blocks in no order.
  std::vector<std::int32_t> positions(rows);
  std::vector<std::int64_t> slots(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t block = row / kBlockSize * 37 % blocks;
    positions[row] = static_cast<std::int32_t>(row % 1024);
    slots[row] = block * kBlockSize + row % kBlockSize;
  }
  NormRopeStore args;
  args.qkv = bench.tensor(dtype, {rows, (kHeads + 2 * kKvHeads) * kHeadDim});
  if (norm) {
    args.q_norm = bench.tensor(dtype, {kHeadDim});
    args.k_norm = bench.tensor(dtype, {kHeadDim});
  }
  args.cos_sin = bench.tensor(DType::f32, {kPositions, kHeadDim});
  args.positions = bench.tensor(positions);
  args.slots = bench.tensor(slots);
  args.kv.keys = bench.tensor(dtype, {blocks, kBlockSize, kKvHeads, kHeadDim});
  args.kv.values = bench.tensor(dtype, {blocks, kBlockSize, kKvHeads, kHeadDim});
  args.heads = kHeads;
  bench.run(2 * args.qkv.bytes(), [&] { norm_rope_store(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const std::int64_t rows : {1, 64, 16384}) {
        for (const bool norm : {true, false}) {
          const std::string what = std::to_string(rows) + "x32+8x128" + (norm ? "" : "/plain");
          testing::register_benchmark(
              "norm_rope_store", kind, dtype, what,
              [=](GraphBenchmark& bench) { measure(bench, rows, dtype, norm); });
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
