// What a layer of linear attention computes beside its GEMMs, with the shapes of Qwen3-Next-80B:
// 16 key heads and 32 value heads of 128. Bytes per second count rows read and written, and each
// sequence's state once read and once written. So a prompt's rows, which work on a state in the
// cache, are bound by arithmetic.
#include <numeric>
#include <string>
#include <vector>

#include "kernels/linear_attention/linear_attention.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;

constexpr std::int64_t kKeyHeads = 16, kValueHeads = 32, kDim = 128, kWidth = 4;
constexpr std::int64_t kChannels = (2 * kKeyHeads + kValueHeads) * kDim;
constexpr std::int64_t kValues = kValueHeads * kDim;

// `sequences` sequences with `rows` rows each, which follow earlier rows.
struct Shape {
  std::int64_t sequences, rows;
  std::int64_t all() const { return sequences * rows; }
};

StateRows rows_of(GraphBenchmark& bench, const Shape& shape) {
  std::vector<std::int32_t> start, slots(static_cast<std::size_t>(shape.sequences));
  for (std::int64_t s = 0; s <= shape.sequences; ++s) {
    start.push_back(static_cast<std::int32_t>(s * shape.rows));
  }
  std::iota(slots.begin(), slots.end(), 0);
  const std::vector<std::int32_t> length(slots.size(), 4096);
  return {bench.tensor(start), bench.tensor(length), bench.tensor(slots)};
}

void measure_conv(GraphBenchmark& bench, const Shape& shape) {
  const CausalConv args{
      .out = bench.tensor(DType::bf16, {shape.all(), kChannels}),
      .x = bench.tensor(DType::bf16, {shape.all(), kChannels}),
      .weight = bench.tensor(DType::bf16, {kChannels, kWidth}),
      .state = bench.tensor(DType::bf16, {shape.sequences, kWidth - 1, kChannels}),
      .rows = rows_of(bench, shape)};
  bench.run(2 * (args.x.bytes() + args.state.bytes()), [&] { causal_conv(args, bench.stream()); });
}

// In chunks, where the backend has them and there is memory for them.
void measure_delta_rule(GraphBenchmark& bench, const Shape& shape, bool chunks) {
  GatedDeltaRule args{.out = bench.tensor(DType::bf16, {shape.all(), kValues}),
                      .qkv = bench.tensor(DType::bf16, {shape.all(), kChannels}),
                      .z = bench.tensor(DType::bf16, {shape.all(), kValues}),
                      .ba = bench.tensor(DType::f32, {shape.all(), 2 * kValueHeads}),
                      .a_log = bench.tensor(DType::f32, {kValueHeads}),
                      .dt_bias = bench.tensor(DType::f32, {kValueHeads}),
                      .norm = bench.tensor(DType::f32, {kDim}),
                      .state = bench.tensor(DType::f32, {shape.sequences, kValueHeads, kDim, kDim}),
                      .rows = rows_of(bench, shape),
                      .key_heads = kKeyHeads};
  if (chunks) {
    args.chunks =
        bench.tensor(DType::u8, {delta_chunk_bytes(shape.all(), shape.sequences, kValueHeads)});
  }
  bench.run(args.qkv.bytes() + 2 * args.z.bytes() + 2 * args.state.bytes(),
            [&] { gated_delta_rule(args, bench.stream()); });
}

void register_all(DeviceKind kind, std::initializer_list<Shape> shapes) {
  for (const Shape shape : shapes) {
    const std::string what =
        std::to_string(shape.sequences) + " sequences of " + std::to_string(shape.rows);
    testing::register_benchmark("causal_conv", kind, DType::bf16, what,
                                [=](GraphBenchmark& bench) { measure_conv(bench, shape); });
    testing::register_benchmark(
        "gated_delta_rule", kind, DType::bf16, what,
        [=](GraphBenchmark& bench) { measure_delta_rule(bench, shape, /*chunks=*/false); });
    if (kind == DeviceKind::cpu || shape.rows < kMinChunkedRows) continue;
    testing::register_benchmark(
        "gated_delta_rule", kind, DType::bf16, what + " in chunks",
        [=](GraphBenchmark& bench) { measure_delta_rule(bench, shape, /*chunks=*/true); });
  }
}

const bool registered = [] {
  register_all(DeviceKind::cpu, {{1, 1}, {16, 1}, {1, 512}, {4, 128}});
  register_all(
      DeviceKind::cuda,
      {{1, 1}, {8, 1}, {64, 1}, {256, 1}, {1, 64}, {1, 512}, {1, 8192}, {16, 1024}, {1, 131072}});
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
