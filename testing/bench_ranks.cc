#include "testing/bench_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/topology.h"
#include "kernels/gemm/testing/bench_limits.h"
#include "kernels/pointwise/random_fill.h"

namespace nvllm::testing {
namespace {

constexpr int kReplays = 7;

// Call before a rank creates its backend.
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
      gemm(kernels::create_gemm(*backend)) {
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

double BenchRank::gemm_seconds(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
  const Buffer x = random_memory(*backend, *stream, rows * inputs);
  const Buffer weight = random_memory(*backend, *stream, outputs * inputs);
  const Buffer out = random_memory(*backend, *stream, rows * outputs);
  const kernels::GemmCall call =
      gemm->call({.values = TensorView(weight.data(), DType::bf16, {outputs, inputs})},
                 {.out = TensorView(out.data(), DType::bf16, {rows, outputs}),
                  .x = TensorView(x.data(), DType::bf16, {rows, inputs})});
  gemm->tune({&call, 1}, *stream);
  return seconds([&] { gemm->run(call, *stream); });
}

DeviceLimits BenchRank::limits() {
  const bool gpu = backend->kind() == DeviceKind::cuda;
  DeviceLimits limits;
  {
    const Buffer memory = random_memory(*backend, *stream, gpu ? 1 << 30 : 1 << 27);
    const double read = seconds([&] { kernels::read_all(memory, *stream); });
    limits.bytes_per_second = static_cast<double>(memory.bytes()) / read;
  }
  struct Shape {
    std::int64_t rows, outputs, inputs;
  };
  // Long GEMMs, and one that ends before the device throttles.
  const std::vector<Shape> shapes =
      gpu ? std::vector<Shape>{{8192, 8192, 8192}, {4096, 24576, 4096}, {512, 24576, 4096}}
          : std::vector<Shape>{{512, 1024, 1024}, {512, 2048, 1024}};
  for (const Shape& shape : shapes) {
    const double flops = 2.0 * static_cast<double>(shape.rows * shape.outputs * shape.inputs);
    const double took = gemm_seconds(shape.rows, shape.outputs, shape.inputs);
    limits.flops_per_second = std::max(limits.flops_per_second, flops / took);
  }
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
