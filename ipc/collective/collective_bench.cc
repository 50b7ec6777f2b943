// Latency of collectives. Each benchmark forks its ranks, which measure; the parent only reports,
// and never uses CUDA. Times are those of the slowest rank.
//
//   collective_bench --benchmark_format=json
//
// Counters: us (per call), ranks, bytes (of a rank's tensor); on the CPU memcpy_us, the time in
// which both processes concurrently copy as many bytes, and to_memcpy, the ratio (limit: 2 for 1
// MiB on 2 ranks); min_..., the same for the shortest times, which other work on the machine does
// not affect; handover_us, the time in which both processes concurrently copy what the other has
// just written, a lower bound for any exchange through shared memory, and to_handover (up to 1 MiB,
// because the data must fit in the staging memory). shm/handover/... measures the same after each
// kind of stores (shm/copy_methods.h), with put_us, the time of the writes. On GPUs to_nccl, the
// ratio to NCCL's all_reduce of as many bytes in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/backend.h"
#include "device/topology.h"
#include "ipc/collective/communicator.h"
#include "ipc/collective/shm/copy_methods.h"
#include "ipc/collective/testing/bench_ranks.h"

namespace nvllm::ipc {
namespace {

using bench::measure;
using bench::median;

std::string size_name(std::size_t bytes) {
  std::string name = format_bytes(bytes);
  name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
  return name;
}

using Operation = std::function<void(Communicator&, std::byte* data, std::byte* other,
                                     std::size_t bytes, Stream&)>;

TensorView floats(std::byte* data, std::size_t bytes) {
  return TensorView(data, DType::f32, {static_cast<std::int64_t>(bytes / sizeof(float))});
}

void all_reduce(Communicator& comm, std::byte* data, std::byte*, std::size_t bytes,
                Stream& stream) {
  comm.all_reduce(floats(data, bytes), stream);
}
void all_reduce_bf16(Communicator& comm, std::byte* data, std::byte*, std::size_t bytes,
                     Stream& stream) {
  comm.all_reduce(TensorView(data, DType::bf16, {static_cast<std::int64_t>(bytes / 2)}), stream);
}
void reduce_scatter(Communicator& comm, std::byte* data, std::byte* other, std::size_t bytes,
                    Stream& stream) {
  comm.reduce_scatter(floats(other, bytes / comm.size()), floats(data, bytes), stream);
}
void all_gather(Communicator& comm, std::byte* data, std::byte* other, std::size_t bytes,
                Stream& stream) {
  comm.all_gather(floats(other, bytes), floats(data, bytes / comm.size()), stream);
}
void broadcast(Communicator& comm, std::byte* data, std::byte*, std::size_t bytes, Stream& stream) {
  comm.broadcast(floats(data, bytes), 0, stream);
}
void barrier(Communicator& comm, std::byte*, std::byte*, std::size_t, Stream& stream) {
  comm.barrier(stream);
}

// One rank's call times in microseconds: median and minimum.
struct Times {
  double median = 0;
  double min = 0;
};
struct CpuTimes {
  Times call;
  Times copy;
  Times handover;
};
struct HandoverTimes {
  Times put;
  Times take;
};

Times summary(std::vector<double> times) {
  return {median(times), *std::min_element(times.begin(), times.end())};
}

// The slowest of several ranks.
Times slowest_of(const Times& a, const Times& b) {
  return {std::max(a.median, b.median), std::max(a.min, b.min)};
}

using Put = std::function<void(std::byte* to, const std::byte* from, std::size_t bytes)>;

constexpr std::size_t kMaxHandedOver = std::size_t{1} << 20;

// Each rank writes its staging memory, then copies the next rank's. No collective except barriers,
// which do not use that memory, may be running.
HandoverTimes time_handover(Member& member, Communicator& comm, Stream& stream, std::byte* data,
                            std::size_t bytes, const Put& put) {
  constexpr int kCalls = 200;
  std::vector<double> puts, takes;
  std::byte* const mine = member.staging(member.rank()).data();
  const std::byte* const theirs = member.staging((member.rank() + 1) % member.size()).data();
  auto timed = [](std::vector<double>& times, const auto& work) {
    const std::int64_t start = now_ns();
    work();
    times.push_back(static_cast<double>(now_ns() - start) * 1e-3);
  };
  for (int call = 0; call < kCalls; ++call) {
    comm.barrier(stream);
    stream.host_call([&] { timed(puts, [&] { put(mine, data, bytes); }); });
    comm.barrier(stream);
    stream.host_call([&] { timed(takes, [&] { std::memcpy(data, theirs, bytes); }); });
  }
  comm.barrier(stream);
  comm.wait(stream);
  return {summary(std::move(puts)), summary(std::move(takes))};
}

// Measures in the stream's own thread, so that enqueueing is not included: the time between the
// ends of calls that are queued back to back.
CpuTimes measure_cpu(Member& member, std::size_t bytes, const Operation& operation) {
  const int calls = static_cast<int>(
      std::clamp<std::size_t>((256u << 20) / std::max<std::size_t>(bytes, 1), 32, 1000));
  run_on_cores(share_of_cores(allowed_cores(), member.rank(), member.size()));
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto comm = create_communicator(member, *backend, {});
  const Buffer data = backend->allocate(MemoryKind::host, std::max<std::size_t>(bytes, 64), "data");
  const Buffer other =
      backend->allocate(MemoryKind::host, std::max<std::size_t>(bytes, 64), "other");
  auto* at = static_cast<std::byte*>(data.data());
  auto* to = static_cast<std::byte*>(other.data());
  std::memset(at, 0x3c, data.bytes());
  std::memset(to, 0x3c, other.bytes());

  auto time_calls = [&](const std::function<void()>& call) {
    std::vector<std::int64_t> ends;
    ends.reserve(static_cast<std::size_t>(calls) + 1);
    comm->barrier(*stream);
    stream->host_call([&] { ends.push_back(now_ns()); });
    for (int i = 0; i < calls; ++i) {
      call();
      stream->host_call([&] { ends.push_back(now_ns()); });
    }
    comm->barrier(*stream);
    comm->wait(*stream);
    std::vector<double> times;
    for (std::size_t i = 1; i < ends.size(); ++i) {
      times.push_back(static_cast<double>(ends[i] - ends[i - 1]) * 1e-3);
    }
    return summary(std::move(times));
  };
  auto collective = [&] { operation(*comm, at, to, bytes, *stream); };
  auto copy = [&] { stream->host_call([=] { std::memcpy(to, at, bytes); }); };
  CpuTimes times;
  time_calls(collective);  // warms up pages and caches
  times.copy = time_calls(copy);
  times.call = time_calls(collective);
  if (bytes != 0 && bytes <= kMaxHandedOver) {
    times.handover = time_handover(member, *comm, *stream, at, bytes, std::memcpy).take;
  }
  return times;
}

void run_cpu(benchmark::State& state, int ranks, std::size_t bytes, const Operation& operation) {
  CpuTimes slowest;
  for (auto _ : state) {
    slowest = {};
    for (const CpuTimes& times : measure<CpuTimes>(
             ranks, [&](Member& member) { return measure_cpu(member, bytes, operation); })) {
      slowest = {slowest_of(slowest.call, times.call), slowest_of(slowest.copy, times.copy),
                 slowest_of(slowest.handover, times.handover)};
    }
    state.SetIterationTime(slowest.call.median * 1e-6);
  }
  state.counters["us"] = slowest.call.median;
  state.counters["min_us"] = slowest.call.min;
  state.counters["ranks"] = ranks;
  state.counters["bytes"] = static_cast<double>(bytes);
  if (bytes == 0) return;
  state.counters["memcpy_us"] = slowest.copy.median;
  state.counters["to_memcpy"] = slowest.call.median / slowest.copy.median;
  state.counters["min_to_memcpy"] = slowest.call.min / slowest.copy.min;
  if (bytes > kMaxHandedOver) return;
  state.counters["handover_us"] = slowest.handover.median;
  state.counters["to_handover"] = slowest.call.median / slowest.handover.median;
  state.counters["min_to_handover"] = slowest.call.min / slowest.handover.min;
}

void run_handover(benchmark::State& state, std::size_t bytes, Stores stores) {
  HandoverTimes slowest;
  auto measure_rank = [&](Member& member) {
    run_on_cores(share_of_cores(allowed_cores(), member.rank(), member.size()));
    const auto backend = create_backend(DeviceKind::cpu);
    const auto stream = backend->create_stream();
    const auto comm = create_communicator(member, *backend, {});
    const Buffer data = backend->allocate(MemoryKind::host, bytes, "data");
    std::memset(data.data(), 0, bytes);
    auto put = [&](std::byte* to, const std::byte* from, std::size_t size) {
      copy_for_others(to, from, size, stores);
      finish_copies();
    };
    return time_handover(member, *comm, *stream, static_cast<std::byte*>(data.data()), bytes, put);
  };
  for (auto _ : state) {
    slowest = {};
    for (const HandoverTimes& times : measure<HandoverTimes>(2, measure_rank)) {
      slowest = {slowest_of(slowest.put, times.put), slowest_of(slowest.take, times.take)};
    }
    state.SetIterationTime(slowest.take.median * 1e-6);
  }
  state.counters["put_us"] = slowest.put.median;
  state.counters["handover_us"] = slowest.take.median;
  state.counters["min_put_us"] = slowest.put.min;
  state.counters["min_handover_us"] = slowest.take.min;
}

void add_handover(const char* name, std::size_t bytes, Stores stores) {
  const std::string full = str("shm/handover/", name, "/", size_name(bytes));
  benchmark::RegisterBenchmark(full.c_str(),
                               [=](benchmark::State& state) { run_handover(state, bytes, stores); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

void add_cpu(const std::string& name, int ranks, std::size_t bytes, const Operation& operation) {
  const std::string full = str("shm/", name, "/", size_name(bytes), "/ranks:", ranks);
  benchmark::RegisterBenchmark(
      full.c_str(), [=](benchmark::State& state) { run_cpu(state, ranks, bytes, operation); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

const bool registered = [] {
  for (std::size_t bytes = 64; bytes <= (std::size_t{16} << 20); bytes *= 4) {
    add_cpu("all_reduce", 2, bytes, all_reduce);
  }
  const std::size_t MiB = std::size_t{1} << 20;
  add_cpu("all_reduce_bf16", 2, MiB, all_reduce_bf16);
  add_cpu("reduce_scatter", 2, MiB, reduce_scatter);
  add_cpu("all_gather", 2, MiB, all_gather);
  add_cpu("broadcast", 2, MiB, broadcast);
  add_cpu("barrier", 2, 0, barrier);
  add_cpu("all_reduce", 4, MiB, all_reduce);
  for (std::size_t bytes : {MiB / 8, MiB}) {
    add_handover("streamed", bytes, Stores::streamed);
    add_handover("claimed", bytes, Stores::claimed);
    add_handover("string", bytes, Stores::string);
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::ipc
