// Random values in bytes written per second. The limit is a copy's, which reads half of its bytes.
#include "kernels/pointwise/random_fill.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t columns, DType dtype) {
  RandomFill args;
  args.out = bench.tensor(dtype, {rows, columns});
  args.whole_columns = columns;
  bench.run(args.out.bytes(), [&] { random_fill(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      testing::register_benchmark(
          "random_fill", kind, dtype, "24576x4096",
          [=](GraphBenchmark& bench) { measure(bench, 24576, 4096, dtype); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
