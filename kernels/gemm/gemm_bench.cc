// GEMMs in graphs of many calls, so that launching costs what it costs in a step, over enough
// copies of the weights that none is still in a cache when it is read again.
//
// M up to 16: bytes per second (the weights' alone). "limit" is the bandwidth of reading alone in
// the same run, "of_limit" the share of it reached, "over_floor_us" the time beyond what the limit
// allows. "cublaslt_us": the fastest that its heuristic proposes, in the same form and measured in
// alternation with ours ("beside_us").
// A larger M: floating-point operations per second after tuning; the limit is the fastest of all
// algorithms of cuBLASLt ("algorithms" of them, configurations counted), found by search in the
// same run, and measured in alternation too. "untuned_us": with what its heuristics propose.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "device/backend.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/gemm/testing/bench_limits.h"
#include "kernels/pointwise/random_fill.h"
#include "testing/bench_backend.h"

namespace nvllm::kernels {
namespace {

constexpr std::int64_t kGemvM = 16;
constexpr std::int64_t kReadingM = 256;  // up to which reading weights takes most of the time

struct Shape {
  std::int64_t m, inputs, outputs;
  Prologue prologue = Prologue::none;
  bool apart = false;  // the prologue is a kernel of its own, whatever the plan would be
  DType dtype = DType::bf16;

  std::size_t weight_bytes() const { return inputs * outputs * size_of(dtype); }
  double operations() const { return 2.0 * static_cast<double>(m * inputs * outputs); }
};

// The tensors of a shape, and one call for each copy of the weights.
class Calls {
 public:
  Calls(Backend& backend, Gemm& gemm, Stream& stream, const Shape& shape, std::size_t beyond_caches)
      : shape_(shape) {
    const bool reads = shape.m <= kReadingM;
    const std::size_t bytes = shape.weight_bytes();
    const auto copies = reads ? static_cast<std::int64_t>((beyond_caches + bytes - 1) / bytes) : 1;
    weights_ = random(backend, stream, copies * shape.outputs, shape.inputs, 0.03f);
    const bool gated = shape.prologue == Prologue::gated_activation;
    const std::int64_t columns = gated ? 2 * shape.inputs : shape.inputs;
    x_ = random(backend, stream, shape.m, columns, 1);
    out_ = random(backend, stream, shape.m, shape.outputs, 1);
    norm_weight_ = random(backend, stream, 1, shape.inputs, 1);
    prepared_ = random(backend, stream, shape.m, shape.inputs, 1);
    GemmOperands operands;
    operands.out = TensorView(out_.data(), shape.dtype, {shape.m, shape.outputs});
    operands.x = TensorView(x_.data(), shape.dtype, {shape.m, columns});
    operands.prologue.prepared = TensorView(prepared_.data(), shape.dtype, {shape.m, shape.inputs});
    operands.prologue.norm_weight = TensorView(norm_weight_.data(), shape.dtype, {shape.inputs});
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      const TensorView weight(static_cast<char*>(weights_.data()) + copy * bytes, shape.dtype,
                              {shape.outputs, shape.inputs});
      all_.push_back(gemm.call({.values = weight}, operands, {.prologue = shape.prologue}));
      bare_.push_back(gemm.call({.values = weight}, {operands.out, prepared_x(all_.back())}));
    }
    stream.synchronize();
  }
  const std::vector<GemmCall>& all() const { return all_; }

  void enqueue(std::size_t which, Gemm& gemm, Stream& stream) const {
    if (!shape_.apart) return gemm.run(all_[which], stream);
    if (shape_.prologue == Prologue::rms_norm) {
      rms_norm(norm_of(all_[which]), stream);
    } else {
      gated_activation(prologue_activation(all_[which]), stream);
    }
    gemm.run(bare_[which], stream);
  }

 private:
  Buffer random(Backend& backend, Stream& stream, std::int64_t rows, std::int64_t columns,
                float width) const {
    Buffer buffer =
        backend.allocate(MemoryKind::device, rows * columns * size_of(shape_.dtype), "benchmark");
    RandomFill fill;
    fill.out = TensorView(buffer.data(), shape_.dtype, {rows, columns});
    fill.whole_columns = columns;
    fill.width = width;
    random_fill(fill, stream);
    return buffer;
  }

  Shape shape_;
  Buffer weights_, x_, out_, norm_weight_, prepared_;
  std::vector<GemmCall> all_, bare_;  // with the prologue, and without
};

void set_gemv_counters(benchmark::State& state, const Shape& shape, double seconds,
                       Backend& backend, Stream& stream, const std::vector<GemmCall>& calls,
                       Graph& graph, std::size_t graph_calls) {
  const double bytes = static_cast<double>(shape.weight_bytes());
  const double limit = read_bandwidth(backend, stream, std::size_t{2} << 30);
  state.counters["bytes"] = benchmark::Counter(bytes / seconds, benchmark::Counter::kDefaults);
  state.counters["limit_GB_per_s"] = limit * 1e-9;
  state.counters["of_limit"] = bytes / seconds / limit;
  state.counters["over_floor_us"] = (seconds - bytes / limit) * 1e6;
  if (backend.kind() == DeviceKind::cuda && shape.prologue == Prologue::none) {
    const Searched searched = search_cublaslt(backend, stream, calls, false, graph, graph_calls);
    state.counters["cublaslt_us"] = searched.seconds * 1e6;
    state.counters["beside_us"] = searched.ours_seconds * 1e6;
  }
}

void set_gemm_counters(benchmark::State& state, const Shape& shape, double seconds,
                       Backend& backend, Stream& stream, const std::vector<GemmCall>& calls,
                       Graph& graph) {
  state.counters["flops"] = shape.operations() / seconds;
  if (backend.kind() != DeviceKind::cuda) return;
  const Searched searched = search_cublaslt(backend, stream, calls, true, graph, calls.size());
  state.counters["cublaslt_us"] = searched.seconds * 1e6;
  state.counters["algorithms"] = searched.algorithms;
  state.counters["limit_TFLOP_per_s"] = shape.operations() / searched.seconds * 1e-12;
  const auto untuned = create_gemm(backend);
  const auto untuned_graph = backend.capture(stream, [&] {
    for (const GemmCall& call : calls) untuned->run(call, stream);
  });
  state.counters["untuned_us"] =
      seconds_of(*untuned_graph, backend, stream) / static_cast<double>(calls.size()) * 1e6;
  state.counters["beside_us"] = searched.ours_seconds * 1e6;
  state.counters["of_limit"] = searched.seconds / searched.ours_seconds;
}

void gemm_in_graph(benchmark::State& state, DeviceKind kind, const Shape& shape) {
  const auto backend = nvllm::testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  const std::size_t beyond_caches = std::size_t{256} << 20;
  const Calls calls(*backend, *gemm, *stream, shape, beyond_caches);
  gemm->tune(calls.all(), *stream);
  // On the GPU, the graph repeats calls with few rows until it takes a millisecond or more.
  const std::size_t rounds =
      kind == DeviceKind::cuda && shape.m <= kGemvM
          ? std::max<std::size_t>(
                1, (std::size_t{4} << 30) / shape.weight_bytes() / calls.all().size())
          : 1;
  const auto graph = backend->capture(*stream, [&] {
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < calls.all().size(); ++i) calls.enqueue(i, *gemm, *stream);
    }
  });
  double seconds = 1e9;  // per call, the best
  for (auto _ : state) {
    const double taken =
        seconds_of(*graph, *backend, *stream) / static_cast<double>(rounds * calls.all().size());
    state.SetIterationTime(taken);
    seconds = std::min(seconds, taken);
  }
  state.counters["us_per_call"] = seconds * 1e6;
  if (shape.m <= kGemvM) {
    set_gemv_counters(state, shape, seconds, *backend, *stream, calls.all(), *graph,
                      rounds * calls.all().size());
  } else {
    set_gemm_counters(state, shape, seconds, *backend, *stream, calls.all(), *graph);
  }
}

std::string prologue_name(const Shape& shape) {
  const std::string apart = shape.apart ? "_apart" : "";
  switch (shape.prologue) {
    case Prologue::rms_norm: return "/norm" + apart;
    case Prologue::gated_activation: return "/silu" + apart;
    default: return "";
  }
}

void register_case(DeviceKind kind, const Shape& shape) {
  const std::string name = std::string("gemm/") + name_of(kind) + "/" + name_of(shape.dtype) + "/" +
                           std::to_string(shape.m) + "x" + std::to_string(shape.inputs) + "->" +
                           std::to_string(shape.outputs) + prologue_name(shape);
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { gemm_in_graph(state, kind, shape); })
      ->UseManualTime()
      ->Iterations(kind == DeviceKind::cuda ? 3 : 1);
}

// Registers all cases when the program starts.
const bool registered = [] {
  // inputs, outputs: of Qwen3-8B and 4B (the last is the LM head's), then of Qwen3-0.6B.
  constexpr std::int64_t kShapes[][2] = {{4096, 6144},  {4096, 4096}, {4096, 24576},  {12288, 4096},
                                         {2560, 19456}, {9728, 2560}, {2560, 151936}, {1024, 4096},
                                         {2048, 1024},  {1024, 6144}, {3072, 1024}};
  constexpr std::int64_t kMany[][2] = {{4096, 6144}, {4096, 4096}, {4096, 24576}, {12288, 4096}};
  for (const auto& [inputs, outputs] : kShapes) {
    register_case(DeviceKind::cpu, {1, inputs, outputs});
    for (const std::int64_t m : {1, 2, 4, 8, 16}) {
      register_case(DeviceKind::cuda, {m, inputs, outputs});
    }
  }
  for (const int which : {0, 2, 4, 7, 9}) {  // with a norm as their prologue
    for (const std::int64_t m : {1, 2, 4, 8, 16}) {
      for (const bool apart : {false, true}) {
        register_case(DeviceKind::cuda,
                      {m, kShapes[which][0], kShapes[which][1], Prologue::rms_norm, apart});
      }
    }
  }
  for (const int which : {3, 5, 10}) {  // with an activation as their prologue
    for (const std::int64_t m : {1, 2, 3, 4, 8, 16}) {
      for (const bool apart : {false, true}) {
        register_case(DeviceKind::cuda,
                      {m, kShapes[which][0], kShapes[which][1], Prologue::gated_activation, apart});
      }
    }
  }
  for (const auto& [inputs, outputs] : kMany) {
    register_case(DeviceKind::cpu, {512, inputs, outputs});
    for (const std::int64_t m : {64, 256, 512, 4096, 16384}) {
      register_case(DeviceKind::cuda, {m, inputs, outputs});
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
