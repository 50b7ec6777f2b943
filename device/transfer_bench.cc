// Copies between pinned host memory and a GPU: in one piece by size, both ways at once, and in rows
// that lie apart, one copy each or all of them as one two-dimensional copy. On the CPU, where both
// are the host's memory, what a stream's copies cost.
#include <benchmark/benchmark.h>

#include <string>

#include "base/error.h"
#include "base/text.h"
#include "device/backend.h"
#include "device/testing/transfer_rows.h"
#include "testing/bench_backend.h"

namespace nvllm {
namespace {

enum class Way { to_device, to_host };

constexpr MemoryKind source_of(Way way) {
  return way == Way::to_device ? MemoryKind::pinned : MemoryKind::device;
}
constexpr MemoryKind target_of(Way way) {
  return way == Way::to_device ? MemoryKind::device : MemoryKind::pinned;
}

struct Transfer {
  Transfer(Backend& backend, Way way, std::size_t source_bytes, std::size_t bytes)
      : source(backend.allocate(source_of(way), source_bytes, "benchmark")),
        target(backend.allocate(target_of(way), bytes, "benchmark")),
        stream(backend.create_stream()) {
    backend.fill(source.data(), 1, source_bytes, *stream);
    stream->synchronize();
  }
  Buffer source, target;
  std::unique_ptr<Stream> stream;
};

void contiguous(benchmark::State& state, DeviceKind kind, Way way, std::size_t bytes) {
  const auto backend = testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const Transfer transfer(*backend, way, bytes, bytes);
  for (auto _ : state) {
    backend->copy(transfer.target.data(), transfer.source.data(), bytes, *transfer.stream);
    transfer.stream->synchronize();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

// Bytes of both ways together.
void both_ways(benchmark::State& state, DeviceKind kind, std::size_t bytes) {
  const auto backend = testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const Transfer in(*backend, Way::to_device, bytes, bytes);
  const Transfer out(*backend, Way::to_host, bytes, bytes);
  for (auto _ : state) {
    backend->copy(in.target.data(), in.source.data(), bytes, *in.stream);
    backend->copy(out.target.data(), out.source.data(), bytes, *out.stream);
    in.stream->synchronize();
    out.stream->synchronize();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * bytes));
}

// Every second row of the source.
void in_rows(benchmark::State& state, DeviceKind kind, Way way, bool two_dimensional,
             std::size_t row_bytes, std::size_t bytes) {
  const auto backend = testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const Transfer transfer(*backend, way, 2 * bytes, bytes);
  const Rows rows{.to = transfer.target.data(),
                  .from = transfer.source.data(),
                  .from_pitch = 2 * row_bytes,
                  .row_bytes = row_bytes,
                  .rows = bytes / row_bytes};
  for (auto _ : state) {
    if (two_dimensional) {
      copy_two_dimensional(rows, *transfer.stream);
    } else {
      copy_one_by_one(*backend, rows, *transfer.stream);
    }
    transfer.stream->synchronize();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

constexpr std::size_t kKib = 1024, kMib = 1024 * kKib;

template <typename Body>
void add(const std::string& name, const Body& body) {
  benchmark::RegisterBenchmark(("transfer/" + name).c_str(), body)->UseRealTime();
}

bool register_all() {
  using benchmark::State;
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const std::string device = kind == DeviceKind::cpu ? "cpu" : "cuda";
    for (const Way way : {Way::to_device, Way::to_host}) {
      const std::string where = device + (way == Way::to_device ? "/to_device" : "/to_host");
      for (const std::size_t bytes : {64 * kKib, kMib, 8 * kMib, 64 * kMib, 256 * kMib}) {
        add(str(where, "/contiguous/", bytes / kKib, "KiB"),
            [=](State& state) { contiguous(state, kind, way, bytes); });
      }
      for (const std::size_t row : {4 * kKib, 64 * kKib, kMib}) {
        const std::string rows = str(row / kKib, "KiB_of_8MiB");
        add(str(where, "/strided/", rows),
            [=](State& state) { in_rows(state, kind, way, false, row, 8 * kMib); });
        if (kind == DeviceKind::cpu) continue;
        add(str(where, "/2d/", rows),
            [=](State& state) { in_rows(state, kind, way, true, row, 8 * kMib); });
      }
    }
    add(device + "/both_ways/256MiB", [=](State& state) { both_ways(state, kind, 256 * kMib); });
  }
  return true;
}

[[maybe_unused]] const bool registered = register_all();

}  // namespace
}  // namespace nvllm
