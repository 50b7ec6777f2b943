// Measures the combination of partial attention results in bytes per second: everything read plus
// everything written.
#include "kernels/attention/attention.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

void measure(GraphBenchmark& bench, std::int64_t rows, std::int64_t heads, DType out, int count) {
  CombineAttention args;
  args.lse = bench.tensor(DType::f32, {rows, heads});
  std::int64_t bytes = 0;
  for (args.count = 0; args.count < count; ++args.count) {
    args.parts[args.count] = {bench.tensor(DType::f32, {rows, heads, 128}),
                              bench.tensor(DType::f32, {rows, heads})};
    bytes += args.parts[args.count].out.bytes();
  }
  args.out = out == DType::f32 ? args.parts[0].out : bench.tensor(out, {rows, heads, 128});
  bench.run(bytes + args.out.bytes(), [&] { combine_attention(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType out : {DType::bf16, DType::f32}) {
      for (const int rows : {1, 64, 4096}) {
        for (const int count : {1, 2, 8}) {
          const std::string what = std::to_string(rows) + "x32x128/" + std::to_string(count);
          testing::register_benchmark(
              "combine_attention", kind, out, what,
              [=](GraphBenchmark& bench) { measure(bench, rows, 32, out, count); });
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
