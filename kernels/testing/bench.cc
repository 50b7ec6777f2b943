#include "kernels/testing/bench.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "testing/bench_backend.h"

namespace nvllm::kernels::testing {
namespace {

constexpr double kSeconds = 0.1;  // of a benchmark

// Copying more is not faster.
constexpr std::size_t kMaxCopied = 256 << 20;

}  // namespace

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

Buffer random_e4m3(Backend& backend, Stream& stream, std::int64_t bytes) {
  const std::int64_t piece = std::min<std::int64_t>(bytes, 1 << 22);
  const Buffer host =
      backend.allocate(MemoryKind::pinned, static_cast<std::size_t>(piece), "benchmark");
  std::mt19937 random(7);
  for (std::int64_t i = 0; i < piece; ++i) {
    static_cast<unsigned char*>(host.data())[i] = static_cast<unsigned char>(random() & 0xbf);
  }
  Buffer buffer =
      backend.allocate(MemoryKind::device, static_cast<std::size_t>(bytes), "benchmark");
  for (std::int64_t at = 0; at < bytes; at += piece) {
    backend.copy(static_cast<char*>(buffer.data()) + at, host.data(),
                 static_cast<std::size_t>(std::min(piece, bytes - at)), stream);
  }
  stream.synchronize();
  return buffer;
}

GraphBenchmark::GraphBenchmark(benchmark::State& state, DeviceKind kind) : state_(state) {
  backend_ = nvllm::testing::backend_or_skip(state, kind);
  if (backend_ != nullptr) stream_ = backend_->create_stream();
}

Buffer GraphBenchmark::allocate(std::size_t bytes) {
  Buffer buffer = backend_->allocate(MemoryKind::device, bytes, "benchmark");
  backend_->fill(buffer.data(), 0, bytes, *stream_);
  return buffer;
}

TensorView GraphBenchmark::tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  buffers_.push_back(allocate(view.bytes()));
  view.data = buffers_.back().data();
  return view;
}

void GraphBenchmark::set(const TensorView& view, const void* values) {
  const Buffer pinned = backend_->allocate(MemoryKind::pinned, view.bytes(), "benchmark");
  std::memcpy(pinned.data(), values, view.bytes());
  backend_->copy(view.data, pinned.data(), view.bytes(), *stream_);
  stream_->synchronize();
}

double GraphBenchmark::copy_seconds(std::size_t bytes, int calls) {
  const Buffer from = allocate(bytes), to = allocate(bytes);
  const auto copies = backend_->capture(*stream_, [&] {
    for (int i = 0; i < calls; ++i) backend_->copy(to.data(), from.data(), bytes, *stream_);
  });
  return seconds_of(*copies, *stream_) / calls;
}

void GraphBenchmark::run(std::size_t traffic, const std::function<void()>& call) {
  // Enough calls in a graph that launching it does not count.
  const int calls = static_cast<int>(std::clamp<std::size_t>((64 << 20) / traffic, 1, 100));
  const std::size_t copied = std::clamp<std::size_t>(traffic / 2, 1, kMaxCopied);
  const double limit = 2 * static_cast<double>(copied) / copy_seconds(copied, calls);
  const auto graph = backend_->capture(*stream_, [&] {
    for (int i = 0; i < calls; ++i) call();
  });
  graph->launch(*stream_);  // the first launch also uploads it
  stream_->synchronize();
  std::int64_t launches = 0;
  const std::int64_t start = now_ns();
  for (auto _ : state_) {
    graph->launch(*stream_);
    stream_->synchronize();
    ++launches;
  }
  const double seconds = seconds_since(start) / static_cast<double>(launches * calls);
  state_.SetBytesProcessed(launches * calls * static_cast<std::int64_t>(traffic));
  state_.counters["us_per_call"] = seconds * 1e6;
  state_.counters["limit_GB_per_s"] = limit * 1e-9;
  state_.counters["of_limit"] = static_cast<double>(traffic) / seconds / limit;
}

void register_benchmark(const std::string& operation, DeviceKind kind, DType dtype,
                        const std::string& what,
                        const std::function<void(GraphBenchmark&)>& benchmark) {
  const std::string name = operation + "/" + name_of(kind) + "/" + name_of(dtype) + "/" + what;
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 try {
                                   GraphBenchmark bench(state, kind);
                                   if (bench) benchmark(bench);
                                 } catch (const Error& error) {  // too little memory, say
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->MinTime(kSeconds)
      ->UseRealTime();
}

}  // namespace nvllm::kernels::testing
