// Segmented GEMMs beside one GEMM of all inputs, in graphs of many calls, over enough copies of
// the weights that none is still in a cache when it is read again. "whole_us": the invariant GEMM
// (GemmOptions::invariant) of the whole weight; "usual_us": the one that is not; both to 16-bit
// floats, as the segmented one. On the CPU these two are the same.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "device/backend.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/bench_limits.h"
#include "kernels/pointwise/random_fill.h"
#include "testing/bench_backend.h"

namespace nvllm::kernels {
namespace {

struct Shape {
  const char* name;
  std::int64_t inputs, outputs;  // of all segments
};

// What ranks sum over, in models.
constexpr Shape kShapes[] = {{"0.6b output", 2048, 1024}, {"0.6b down", 3072, 1024},
                             {"4b output", 4096, 2560},   {"4b down", 9728, 2560},
                             {"8b output", 4096, 4096},   {"8b down", 12288, 4096}};
constexpr std::int64_t kSegments = 8;

Buffer random(Backend& backend, Stream& stream, std::int64_t rows, std::int64_t columns,
              float width) {
  Buffer buffer = backend.allocate(MemoryKind::device, rows * columns * 2, "benchmark");
  random_fill({.out = TensorView(buffer.data(), DType::bf16, {rows, columns}),
               .whole_columns = columns,
               .width = width},
              stream);
  return buffer;
}

void segmented(benchmark::State& state, DeviceKind kind, const Shape& shape, std::int64_t m) {
  const auto backend = nvllm::testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  const auto invariant = create_gemm(*backend, {.invariant = true});
  const auto usual = create_gemm(*backend);
  const std::int64_t bytes = shape.inputs * shape.outputs * 2;
  const std::int64_t copies = std::max<std::int64_t>(1, (std::int64_t{256} << 20) / bytes);
  const Buffer weights = random(*backend, *stream, copies * shape.outputs, shape.inputs, 0.03f);
  const Buffer x = random(*backend, *stream, m, shape.inputs, 1);
  const Buffer out = random(*backend, *stream, m, shape.outputs, 1);
  const Buffer summands =
      backend->allocate(MemoryKind::device, kSegments * m * shape.outputs * 4, "benchmark");
  const auto weight_of = [&](std::int64_t copy, std::int64_t rows) {
    return TensorView(static_cast<char*>(weights.data()) + copy * bytes, DType::bf16,
                      {rows, shape.inputs * shape.outputs / rows});
  };
  const TensorView x_view(x.data(), DType::bf16, {m, shape.inputs});
  const TensorView out_view(out.data(), DType::bf16, {m, shape.outputs});
  TreeSum sum{.out = out_view,
              .sources = {summands.data(), DType::f32, {kSegments * m, shape.outputs}},
              .count = kSegments,
              .blocks = {0, 1, 2, 3, 4, 5, 6, 7},
              .merges = {0, 1, 0, 2, 0, 1, 0, 3}};
  const auto seconds = [&](const auto& enqueue) {
    enqueue(0);  // what is chosen once is chosen
    stream->synchronize();
    const auto graph = backend->capture(*stream, [&] {
      for (std::int64_t call = 0; call < 4 * copies; ++call) enqueue(call % copies);
    });
    return seconds_of(*graph, *backend, *stream) / static_cast<double>(4 * copies);
  };
  const auto gemm_of = [&](Gemm& gemm, std::int64_t copy) {
    gemm.run(gemm.call({.values = weight_of(copy, shape.outputs)}, {.out = out_view, .x = x_view}),
             *stream);
  };
  for (auto _ : state) {
    state.SetIterationTime(seconds([&](std::int64_t copy) {
      invariant->run_segmented({.weight = {.values = weight_of(copy, kSegments * shape.outputs)},
                                .x = x_view,
                                .sum = sum},
                               *stream);
    }));
  }
  state.counters["whole_us"] = seconds([&](std::int64_t copy) { gemm_of(*invariant, copy); }) * 1e6;
  state.counters["usual_us"] = seconds([&](std::int64_t copy) { gemm_of(*usual, copy); }) * 1e6;
}

[[maybe_unused]] const bool registered = [] {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const Shape& shape : kShapes) {
      for (const std::int64_t m : {1, 8, 16, 64, 256, 512, 1024, 2048}) {
        const std::string name = std::string(name_of(kind)) + "/segmented_gemm/" + shape.name +
                                 "/m:" + std::to_string(m);
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { segmented(state, kind, shape, m); })
            ->UseManualTime()
            ->Iterations(kind == DeviceKind::cuda ? 3 : 1)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
