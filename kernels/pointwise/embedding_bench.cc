// Embedding in bytes per second: rows read and written. The rows lie apart in a table of 151,936.
#include "kernels/pointwise/embedding.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t columns, DType dtype) {
  constexpr std::int64_t kEntries = 151'936;
  std::vector<std::int32_t> ids(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    ids[row] = static_cast<std::int32_t>((row + 1) * 7'919 % kEntries);
  }
  Embedding args;
  args.out = bench.tensor(dtype, {rows, columns});
  args.ids = bench.tensor(ids);
  args.table = bench.tensor(dtype, {kEntries, columns});
  bench.run(2 * args.out.bytes(), [&] { embedding(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t rows : {1, 256, 16384}) {
      testing::register_benchmark(
          "embedding", kind, DType::bf16, std::to_string(rows) + "x4096",
          [=](GraphBenchmark& bench) { measure(bench, rows, 4096, DType::bf16); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
