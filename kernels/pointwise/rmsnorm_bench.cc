// RMSNorm in bytes per second: everything read plus everything written, weights aside.
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

struct Shape {
  std::int64_t rows, columns;
};

void measure(GraphBenchmark& bench, Shape shape, DType dtype, bool residual) {
  RmsNorm args;
  args.out = bench.tensor(dtype, {shape.rows, shape.columns});
  args.x = bench.tensor(dtype, {shape.rows, shape.columns});
  // Zeros stay zeros, however often added.
  if (residual) args.residual = bench.tensor(dtype, {shape.rows, shape.columns});
  args.weight = bench.tensor(dtype, {shape.columns});
  bench.run(args.x.bytes() * (residual ? 4 : 2), [&] { rms_norm(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  constexpr Shape kShapes[] = {
      {1, 4096}, {400, 800}, {4000, 8000}, {8 * 4000, 8000}, {16384, 4096}};
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const Shape shape : kShapes) {
        for (const bool residual : {false, true}) {
          const std::string what = std::to_string(shape.rows) + "x" +
                                   std::to_string(shape.columns) + (residual ? "/residual" : "");
          testing::register_benchmark("rms_norm", kind, dtype, what, [=](GraphBenchmark& bench) {
            measure(bench, shape, dtype, residual);
          });
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
