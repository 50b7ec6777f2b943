#include "testing/bench_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/topology.h"
#include "kernels/random_fill.h"

namespace nvllm::testing {
namespace {

constexpr int kReplays = 7;

// Before a rank makes its backend.
DeviceKind take_device(const ipc::Member& member, DeviceKind kind) {
  if (kind == DeviceKind::cuda) {
    const auto gpus = visible_gpus();
    setenv("CUDA_VISIBLE_DEVICES", gpus.at(static_cast<std::size_t>(member.rank())).c_str(), 1);
  } else {
    run_on_cores(share_of_cores(allowed_cores(), member.rank(), member.size()));
  }
  return kind;
}

}  // namespace

Buffer random_memory(Backend& backend, Stream& stream, std::int64_t elements) {
  Buffer buffer = backend.allocate(MemoryKind::device,
                                   static_cast<std::size_t>(elements) * sizeof(Bf16), "benchmark");
  kernels::RandomFill fill;
  fill.out = TensorView(buffer.data(), DType::bf16, {1, elements});
  fill.whole_columns = elements;
  fill.width = 0.03f;
  kernels::random_fill(fill, stream);
  return buffer;
}

BenchRank::BenchRank(ipc::Member& member, DeviceKind kind)
    : number(member.rank()),
      ranks(member.size()),
      backend(create_backend(take_device(member, kind))),
      stream(backend->create_stream()),
      matmul(kernels::create_matmul(*backend)) {
  if (member.size() > 1) communicator = ipc::create_communicator(member, *backend, {});
}

void BenchRank::wait() {
  communicator != nullptr ? communicator->wait(*stream) : stream->synchronize();
}

double BenchRank::seconds(const std::function<void()>& enqueue) {
  enqueue();  // libraries load, connections open
  wait();
  const auto graph = backend->capture(*stream, enqueue);
  graph->launch(*stream);  // which also uploads it
  wait();
  const auto begin = backend->create_event(true), end = backend->create_event(true);
  std::vector<double> times;
  for (int replay = 0; replay < kReplays; ++replay) {
    if (communicator != nullptr) communicator->barrier(*stream);
    begin->record(*stream);
    graph->launch(*stream);
    end->record(*stream);
    wait();
    times.push_back(end->seconds_since(*begin));
  }
  return ipc::bench::median(times);
}

double BenchRank::product_seconds(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
  const Buffer x = random_memory(*backend, *stream, rows * inputs);
  const Buffer weight = random_memory(*backend, *stream, outputs * inputs);
  const Buffer out = random_memory(*backend, *stream, rows * outputs);
  kernels::Linear args;
  args.x = TensorView(x.data(), DType::bf16, {rows, inputs});
  args.weight = TensorView(weight.data(), DType::bf16, {outputs, inputs});
  args.out = TensorView(out.data(), DType::bf16, {rows, outputs});
  matmul->tune(args, *stream);
  return seconds([&] { matmul->linear(args, *stream); });
}

double BenchRank::copy_seconds(std::size_t bytes) {
  const auto elements = static_cast<std::int64_t>(bytes / sizeof(Bf16));
  const Buffer from = random_memory(*backend, *stream, elements);
  const Buffer to = random_memory(*backend, *stream, elements);
  return seconds([&] { backend->copy(to.data(), from.data(), bytes, *stream); });
}

DeviceLimits BenchRank::limits() {
  const bool gpu = backend->kind() == DeviceKind::cuda;
  const std::int64_t outputs = gpu ? 1 << 17 : 1 << 14, inputs = 4096;
  const auto bytes = static_cast<std::size_t>(outputs * inputs) * sizeof(Bf16);
  DeviceLimits limits;
  limits.bytes_per_second =
      std::max(static_cast<double>(bytes) / product_seconds(1, outputs, inputs),
               2 * static_cast<double>(bytes) / copy_seconds(bytes));
  const std::int64_t n = gpu ? 8192 : 512;
  limits.flops_per_second = 2.0 * static_cast<double>(n * n * n) / product_seconds(n, n, n);
  return limits;
}

void report_limits(benchmark::State& state, const DeviceLimits& limits, double seconds,
                   double bytes, double flops) {
  const double floor = std::max(bytes / limits.bytes_per_second, flops / limits.flops_per_second);
  state.counters["us"] = seconds * 1e6;
  state.counters["bytes"] = bytes;
  state.counters["flops"] = flops;
  state.counters["floor_us"] = floor * 1e6;
  state.counters["of_limit"] = floor / seconds;
  state.counters["limit_GB_per_s"] = limits.bytes_per_second * 1e-9;
  state.counters["limit_GFLOP_per_s"] = limits.flops_per_second * 1e-9;
}

std::string why_no_bench_ranks(DeviceKind kind, int ranks) {
  if (kind == DeviceKind::cpu) return {};
  if (!cuda_built()) return "this program was built without CUDA";
  std::string why;
  const std::size_t gpus = visible_gpus(&why).size();
  if (static_cast<int>(gpus) >= ranks) return {};
  return str("needs ", ranks, " GPUs, found ", gpus, why.empty() ? "" : " (" + why + ")");
}

}  // namespace nvllm::testing
