// What the device layer costs: enqueueing work, handing over between streams, launching graphs,
// copying. The CUDA benchmarks skip themselves where there is no GPU.
#include <benchmark/benchmark.h>

#include <string>

#include "base/error.h"
#include "device/backend.h"
#include "device/cpu/stream.h"
#include "testing/bench_backend.h"

namespace nvllm {
namespace {

// Runs a benchmark's body on a backend; without one the benchmark says why it is skipped.
template <typename Body>
void on(DeviceKind kind, benchmark::State& state, Body&& body) {
  const auto backend = testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  body(*backend);
}

// The caller's cost of a small task while the stream keeps up with it.
void enqueue_cpu_task(benchmark::State& state) {
  on(DeviceKind::cpu, state, [&](Backend& backend) {
    const auto stream = backend.create_stream();
    cpu::Stream& queue = cpu::stream(*stream);
    long count = 0;
    for (auto _ : state) queue.submit([&count] { ++count; });
    stream->synchronize();
    state.SetItemsProcessed(state.iterations());
  });
}
BENCHMARK(enqueue_cpu_task);

// A step's worth of small tasks, from the first enqueue to the return of synchronize().
void run_1000_cpu_tasks(benchmark::State& state) {
  on(DeviceKind::cpu, state, [&](Backend& backend) {
    const auto stream = backend.create_stream();
    cpu::Stream& queue = cpu::stream(*stream);
    long count = 0;
    for (auto _ : state) {
      for (int i = 0; i < 1000; ++i) queue.submit([&count] { ++count; });
      stream->synchronize();
    }
    state.SetItemsProcessed(state.iterations() * 1000);
  });
}
BENCHMARK(run_1000_cpu_tasks)->UseRealTime();

void enqueue_and_synchronize(benchmark::State& state, DeviceKind kind) {
  on(kind, state, [&](Backend& backend) {
    const Buffer buffer = backend.allocate(MemoryKind::device, 256, "benchmark");
    const auto stream = backend.create_stream();
    for (auto _ : state) {
      backend.fill(buffer.data(), 0, 256, *stream);
      stream->synchronize();
    }
  });
}
BENCHMARK_CAPTURE(enqueue_and_synchronize, cpu, DeviceKind::cpu)->UseRealTime();
BENCHMARK_CAPTURE(enqueue_and_synchronize, cuda, DeviceKind::cuda)->UseRealTime();

// One stream's event to another stream's work and back.
void event_round_trip(benchmark::State& state, DeviceKind kind) {
  constexpr int kRounds = 100;
  on(kind, state, [&](Backend& backend) {
    const auto one = backend.create_stream();
    const auto two = backend.create_stream();
    const auto there = backend.create_event();
    const auto back = backend.create_event();
    const Buffer buffer = backend.allocate(MemoryKind::device, 512, "benchmark");
    for (auto _ : state) {
      for (int i = 0; i < kRounds; ++i) {
        backend.fill(buffer.data(), 0, 256, *one);
        there->record(*one);
        two->wait(*there);
        backend.fill(static_cast<char*>(buffer.data()) + 256, 0, 256, *two);
        back->record(*two);
        one->wait(*back);
      }
      one->synchronize();
    }
    state.SetItemsProcessed(state.iterations() * kRounds);
  });
}
BENCHMARK_CAPTURE(event_round_trip, cpu, DeviceKind::cpu)->UseRealTime();
BENCHMARK_CAPTURE(event_round_trip, cuda, DeviceKind::cuda)->UseRealTime();

// A graph of many small pieces of work, launched and waited for.
void launch_graph_of_250(benchmark::State& state, DeviceKind kind) {
  on(kind, state, [&](Backend& backend) {
    const Buffer buffer = backend.allocate(MemoryKind::device, 256, "benchmark");
    const auto stream = backend.create_stream();
    const auto graph = backend.capture(*stream, [&] {
      for (int i = 0; i < 250; ++i) backend.fill(buffer.data(), 0, 256, *stream);
    });
    for (auto _ : state) {
      graph->launch(*stream);
      stream->synchronize();
    }
  });
}
BENCHMARK_CAPTURE(launch_graph_of_250, cpu, DeviceKind::cpu)->UseRealTime();
BENCHMARK_CAPTURE(launch_graph_of_250, cuda, DeviceKind::cuda)->UseRealTime();

void copy(benchmark::State& state, DeviceKind kind, MemoryKind to, MemoryKind from) {
  on(kind, state, [&](Backend& backend) {
    const auto bytes = static_cast<std::size_t>(state.range(0));
    const Buffer source = backend.allocate(from, bytes, "benchmark");
    const Buffer target = backend.allocate(to, bytes, "benchmark");
    const auto stream = backend.create_stream();
    backend.fill(source.data(), 1, bytes, *stream);
    for (auto _ : state) {
      backend.copy(target.data(), source.data(), bytes, *stream);
      stream->synchronize();
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
  });
}
BENCHMARK_CAPTURE(copy, cpu, DeviceKind::cpu, MemoryKind::host, MemoryKind::host)
    ->Arg(64 << 10)
    ->Arg(64 << 20)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy, cuda_to_device, DeviceKind::cuda, MemoryKind::device, MemoryKind::pinned)
    ->Arg(64 << 10)
    ->Arg(64 << 20)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy, cuda_to_host, DeviceKind::cuda, MemoryKind::pinned, MemoryKind::device)
    ->Arg(64 << 20)
    ->UseRealTime();
BENCHMARK_CAPTURE(copy, cuda_inside, DeviceKind::cuda, MemoryKind::device, MemoryKind::device)
    ->Arg(256 << 20)
    ->UseRealTime();

void create(benchmark::State& state, DeviceKind kind) {
  on(kind, state, [&](Backend&) {
    for (auto _ : state) benchmark::DoNotOptimize(create_backend(kind));
  });
}
BENCHMARK_CAPTURE(create, cpu, DeviceKind::cpu);
BENCHMARK_CAPTURE(create, cuda_again,
                  DeviceKind::cuda);  // its context is there after the first time

}  // namespace
}  // namespace nvllm
