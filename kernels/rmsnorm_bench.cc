// RMSNorm in bytes per second (everything read plus everything written, weights aside) and, on
// CUDA, in graphs of many calls, so that launching costs what it costs in a step. "limit" is the
// bandwidth of a plain copy (read plus write) of as many bytes in the same run; "of_limit" the
// share of it reached.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "device/backend.h"
#include "device/topology.h"
#include "kernels/rmsnorm.h"

namespace nvllm::kernels {
namespace {

struct Shape {
  std::int64_t rows, columns;
  DType dtype;
  bool residual;
};

// Seconds per launch of a graph, the best of a few.
double seconds_of(Graph& graph, Stream& stream) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const std::int64_t start = now_ns();
    graph.launch(stream);
    stream.synchronize();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

void rms_norm_in_graph(benchmark::State& state, DeviceKind kind, Shape shape) {
  std::string why = "this program was built without CUDA";
  if (kind == DeviceKind::cuda && (!cuda_built() || visible_gpus(&why).empty())) {
    state.SkipWithError(why.c_str());
    return;
  }
  const auto backend = create_backend(kind);
  const std::size_t row_bytes = shape.columns * size_of(shape.dtype);
  const std::size_t bytes = shape.rows * row_bytes;
  const std::size_t traffic = bytes * (shape.residual ? 4 : 2);
  // Enough calls in a graph that launching it does not count.
  const int calls = static_cast<int>(std::clamp<std::size_t>((64 << 20) / traffic, 1, 100));

  const Buffer x = backend->allocate(MemoryKind::device, bytes, "benchmark");
  const Buffer out = backend->allocate(MemoryKind::device, bytes, "benchmark");
  const Buffer residual = backend->allocate(MemoryKind::device, bytes, "benchmark");
  const Buffer weight = backend->allocate(MemoryKind::device, row_bytes, "benchmark");
  const auto stream = backend->create_stream();
  for (const Buffer* buffer : {&x, &out, &residual, &weight}) {
    backend->fill(buffer->data(), 0, buffer->bytes(),
                  *stream);  // zeros stay zeros, however often added
  }
  RmsNorm args;
  args.out = TensorView(out.data(), shape.dtype, {shape.rows, shape.columns});
  args.x = TensorView(x.data(), shape.dtype, {shape.rows, shape.columns});
  if (shape.residual) {
    args.residual = TensorView(residual.data(), shape.dtype, {shape.rows, shape.columns});
  }
  args.weight = TensorView(weight.data(), shape.dtype, {shape.columns});

  const auto graph = backend->capture(*stream, [&] {
    for (int i = 0; i < calls; ++i) rms_norm(args, *stream);
  });
  const auto copies = backend->capture(*stream, [&] {
    for (int i = 0; i < calls; ++i) backend->copy(out.data(), x.data(), bytes, *stream);
  });
  const double copy_seconds = seconds_of(*copies, *stream) / calls;
  std::int64_t launches = 0;
  const std::int64_t start = now_ns();
  for (auto _ : state) {
    graph->launch(*stream);
    stream->synchronize();
    ++launches;
  }
  const double seconds = seconds_since(start) / static_cast<double>(launches * calls);
  const double limit = 2 * static_cast<double>(bytes) / copy_seconds;
  state.SetBytesProcessed(launches * calls * static_cast<std::int64_t>(traffic));
  state.counters["us_per_call"] = seconds * 1e6;
  state.counters["limit_GB_per_s"] = limit * 1e-9;
  state.counters["of_limit"] = static_cast<double>(traffic) / seconds / limit;
}

std::string name_of_case(DeviceKind kind, const Shape& shape) {
  return std::string("rms_norm/") + name_of(kind) + "/" + name_of(shape.dtype) + "/" +
         std::to_string(shape.rows) + "x" + std::to_string(shape.columns) +
         (shape.residual ? "/residual" : "");
}

// Registers all cases when the program starts.
const bool registered = [] {
  constexpr std::int64_t kShapes[][2] = {
      {1, 4096}, {400, 800}, {4000, 8000}, {8 * 4000, 8000}, {16384, 4096}};
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const auto& [rows, columns] : kShapes) {
        for (const bool residual : {false, true}) {
          const Shape shape{rows, columns, dtype, residual};
          benchmark::RegisterBenchmark(
              name_of_case(kind, shape).c_str(),
              [=](benchmark::State& state) { rms_norm_in_graph(state, kind, shape); })
              ->UseRealTime();
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
