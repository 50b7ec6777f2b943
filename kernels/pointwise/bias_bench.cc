// Bias in bytes per second: rows read and written. 6144 columns: q, k and v of 32 and 2 x 8 heads.
#include "kernels/pointwise/bias.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t columns, DType dtype) {
  AddBias args;
  args.x = bench.tensor(dtype, {rows, columns});
  args.bias = bench.tensor(dtype, {columns});
  bench.run(2 * args.x.bytes(), [&] { add_bias(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const std::int64_t rows : {1, 16384}) {
        testing::register_benchmark(
            "add_bias", kind, dtype, std::to_string(rows) + "x6144",
            [=](GraphBenchmark& bench) { measure(bench, rows, 6144, dtype); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
