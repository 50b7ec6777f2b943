// Gated activations in bytes per second: everything read plus everything written. Shapes are those of the
// result; a row of the input is twice as long.
#include "kernels/pointwise/gated_activation.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

struct Case {
  Activation activation;
  DType dtype;
  std::int64_t rows, n;
};

void measure(GraphBenchmark& bench, const Case& c) {
  GatedActivation args;
  args.out = bench.tensor(c.dtype, {c.rows, c.n});
  args.x = bench.tensor(c.dtype, {c.rows, 2 * c.n});
  args.activation = c.activation;
  bench.run(3 * args.out.bytes(), [&] { gated_activation(args, bench.stream()); });
}

// Registers all cases when the program starts.
const bool registered = [] {
  using enum Activation;
  constexpr Case kCases[] = {
      {silu, DType::bf16, 1, 12288},        {silu, DType::f32, 1, 12288},
      {silu, DType::bf16, 400, 800},        {silu, DType::f32, 400, 800},
      {silu, DType::bf16, 4000, 8000},      {silu, DType::f32, 4000, 8000},
      {silu, DType::bf16, 8 * 4000, 8000},  {silu, DType::f32, 8 * 4000, 8000},
      {silu, DType::bf16, 16384, 12288},    {silu, DType::f16, 16384, 12288},
      {gelu, DType::bf16, 4000, 8000},      {gelu, DType::f32, 4000, 8000},
      {gelu_tanh, DType::bf16, 4000, 8000}, {gelu_tanh, DType::f32, 4000, 8000},
  };
  for (const DeviceKind kind : testing::kBackends) {
    for (const Case& c : kCases) {
      const std::string what = std::to_string(c.rows) + "x" + std::to_string(c.n);
      testing::register_benchmark(name_of(c.activation), kind, c.dtype, what,
                                  [c](GraphBenchmark& bench) { measure(bench, c); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
