// The newest tokens of decode steps, of 8 heads of 128 elements.
#include "kernels/pointwise/copy_last_kv.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t sequences) {
  constexpr std::int64_t kBlockSize = 64, kHeads = 8, kDim = 128;
  const auto cache = [&] {
    KvView kv;
    kv.keys = bench.tensor(DType::bf16, {sequences, kBlockSize, kHeads, kDim});
    kv.values = bench.tensor(DType::bf16, {sequences, kBlockSize, kHeads, kDim});
    return kv;
  };
  CopyLastKv args;
  args.to = cache();
  args.from = cache();
  args.kv_length = bench.tensor(std::vector<std::int32_t>(static_cast<std::size_t>(sequences), 40));
  bench.run(static_cast<std::size_t>(sequences * kHeads * kDim) * 2 * 2 * 2,
            [&] { copy_last_kv(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t sequences : {1, 8, 64}) {
      testing::register_benchmark(
          "copy_last_kv", kind, DType::bf16, std::to_string(sequences),
          [sequences](GraphBenchmark& bench) { measure(bench, sequences); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
