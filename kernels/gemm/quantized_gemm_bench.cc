// GEMMs of decoder layers with quantized weights, next to bfloat16, in graphs of many calls over so
// many layers that no weight is still in a cache when it is read again.
//
// fp8-x: x may be in fp8, too. gemm: one of a layer's GEMMs, with the prologue and epilogue that it
// has there. layers: all GEMMs of all layers of a model, planned as in a decode step; no attention
// lies between. lm_head: an LM head of 151,936 entries behind the last norm, without sampling.
// "bytes" counts weights and scales alone, "of_limit" is the share of the bandwidth of reading
// alone in the same run, "over_floor_us" the time beyond what that allows.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "device/backend.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/bench_limits.h"
#include "layers/layer_plan.h"
#include "testing/bench_backend.h"

namespace nvllm::kernels {
namespace {

using layers::LayerGemms;
using layers::LayerPlan;
using layers::LayerRequest;

struct Model {
  const char* name;
  std::int64_t layers, hidden, qkv, heads, mlp;  // heads: inputs of the output GEMM
};
constexpr std::array kModels = {Model{"0.6B", 28, 1024, 4096, 2048, 3072},
                                Model{"4B", 36, 2560, 6144, 4096, 9728},
                                Model{"8B", 36, 4096, 6144, 4096, 12288}};

struct Format {
  const char* name;
  WeightFormat format;
  std::int64_t group = 0;
  bool weight_only = true;
};
constexpr std::array kFormats = {Format{"bf16", WeightFormat::bf16},
                                 Format{"fp8", WeightFormat::fp8, 128},
                                 Format{"fp8-x", WeightFormat::fp8, 128, false},
                                 Format{"int8", WeightFormat::int8, 128},
                                 Format{"int8g32", WeightFormat::int8, 32},
                                 Format{"int8g16", WeightFormat::int8, 16},
                                 Format{"int4", WeightFormat::int4, 128},
                                 Format{"int4g32", WeightFormat::int4, 32}};

constexpr DType kType = DType::bf16;
constexpr std::int64_t kMaxM = 128;
constexpr std::int64_t kVocabulary = 151936;

// Device memory of random bytes, those of small positive floats, or zeros.
class Memory {
 public:
  Memory(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {
    constexpr std::size_t kBytes = 4 << 20;
    random_ = backend.allocate(MemoryKind::pinned, kBytes, "benchmark");
    std::mt19937 random(1);
    for (std::size_t i = 0; i < kBytes / 4; ++i) words(random_)[i] = random();
  }
  // 16-bit floats of up to about 1: half of them in each direction.
  std::byte* floats(std::size_t bytes) { return filled(bytes, 0xbf7f3f7f); }
  std::byte* bytes(std::size_t bytes) { return filled(bytes, ~0u); }
  std::byte* scales(std::size_t bytes) { return filled(bytes, 0x3c003c00); }

 private:
  static std::uint32_t* words(const Buffer& buffer) {
    return static_cast<std::uint32_t*>(buffer.data());
  }
  std::byte* filled(std::size_t bytes, std::uint32_t mask) {
    Buffer pattern = backend_.allocate(MemoryKind::pinned, random_.bytes(), "benchmark");
    for (std::size_t i = 0; i < random_.bytes() / 4; ++i)
      words(pattern)[i] = words(random_)[i] & mask;
    all_.push_back(backend_.allocate(MemoryKind::device, bytes, "benchmark"));
    auto* const to = static_cast<std::byte*>(all_.back().data());
    for (std::size_t at = 0; at < bytes; at += pattern.bytes()) {
      backend_.copy(to + at, pattern.data(), std::min(pattern.bytes(), bytes - at), stream_);
    }
    stream_.synchronize();
    return to;
  }

  Backend& backend_;
  Stream& stream_;
  Buffer random_;
  std::vector<Buffer> all_;
};

GemmWeight weight_of(Memory& memory, const Format& format, std::int64_t outputs,
                     std::int64_t inputs) {
  if (!is_quantized(format.format)) {
    return {.values = TensorView(memory.floats(outputs * inputs * 2), kType, {outputs, inputs})};
  }
  const QuantizedShape shape{format.format, outputs, inputs, format.group};
  GemmWeight weight{.values = TensorView(memory.bytes(shape.value_bytes()), DType::u8,
                                         {outputs, shape.row_bytes()}),
                    .format = format.format};
  weight.quantized = {.scales = TensorView(memory.scales(shape.scale_bytes()), shape.scale_type(),
                                           {outputs, shape.scale_columns()}),
                      .inputs = inputs,
                      .group = format.group,
                      .type = kType,
                      .weight_only = format.weight_only};
  return weight;
}

double bytes_of(const GemmWeight& w) {
  const auto values = static_cast<double>(w.outputs() * w.values.shape[1]);
  const double scales =
      is_quantized(w.format) ? static_cast<double>(w.quantized_shape().scale_bytes()) : 0;
  return values * static_cast<double>(size_of(w.values.dtype)) + scales;
}

// The GEMMs of a model's layers for M rows.
class Layers {
 public:
  Layers(Backend& backend, Stream& stream, Gemm& gemm, const Model& model, const Format& format,
         std::int64_t m, int only)
      : memory_(backend, stream), gemm_(gemm), model_(model), format_(format), m_(m) {
    const Model& s = model;
    const auto rows = [&](std::int64_t columns) {
      return TensorView(memory_.floats(kMaxM * columns * 2), kType, {m, columns});
    };
    const TensorView hidden = rows(s.hidden), sum = rows(s.hidden), qkv = rows(s.qkv),
                     heads = rows(s.heads);
    const TensorView mlp = rows(s.mlp), gate_up = rows(2 * s.mlp), prepared = rows(s.hidden);
    const TensorView norm(prepared.data, kType, {s.hidden});
    const DeferredNorm deferred{
        prepared, TensorView(memory_.floats(s.hidden / kSquaresColumns * kSquaresRows * 4),
                             DType::f32, {s.hidden / kSquaresColumns, kSquaresRows})};
    std::vector<LayerGemms> layers;
    for (std::int64_t i = 0; i < s.layers; ++i) {
      LayerGemms layer;
      layer.attention_norm = layer.mlp_norm = norm;
      if (i > 0) layer = layers.front();
      const auto wanted = [&](int which) { return i == 0 || only < 0 || only == which; };
      if (wanted(0)) layer.qkv = weight(s.qkv, s.hidden);
      if (wanted(1)) layer.output = weight(s.hidden, s.heads);
      if (wanted(2)) layer.gate_up = weight(2 * s.mlp, s.hidden);
      if (wanted(3)) layer.down = weight(s.hidden, s.mlp);
      layers.push_back(layer);
    }
    const LayerRequest request{
        .m = m, .mlp_m = m, .deferred = true, .may_defer = true, .next = layers.data()};
    for (const LayerGemms& layer : layers) {
      const LayerPlan plan = plan_layer(gemm, layer, request);
      GemmOperands normed{.out = qkv, .x = hidden};
      normed.prologue = {.norm_weight = norm, .prepared = prepared, .deferred = deferred};
      normed.epilogue.gate_up = gate_up;
      GemmOperands first = normed, second = normed, added{.out = sum, .x = heads};
      added.residual = hidden;
      second.out = plan.gate_up.epilogue == Epilogue::none ? gate_up : mlp;
      added.epilogue = {.norm_weight = norm, .deferred = deferred};
      calls_.push_back({plan.qkv, layer.qkv, first});
      calls_.push_back({plan.output, layer.output, added});
      calls_.push_back({plan.gate_up, layer.gate_up, second});
      added.x = mlp;
      if (plan.down.prologue == Prologue::gated_activation) {
        added.x = gate_up;
        added.prologue.prepared = mlp;
      }
      calls_.push_back({plan.down, layer.down, added});
    }
  }

  static constexpr std::array kNames = {"qkv", "output", "gate_up", "down"};

  // Enqueues all, or those of one kind.
  void enqueue(int only, Stream& stream) {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (only < 0 || i % 4 == static_cast<std::size_t>(only)) gemm_.run(calls_[i], stream);
    }
  }
  void tune(Stream& stream) {
    for (std::size_t i = 0; i < 4; ++i) gemm_.tune({&calls_[i], 1}, stream);
  }
  double bytes(int only) const {
    double sum = 0;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (only >= 0 && i % 4 != static_cast<std::size_t>(only)) continue;
      sum += bytes_of(calls_[i].weight);
    }
    return sum;
  }
  GemmKernel kernel(int which) const { return calls_[static_cast<std::size_t>(which)].plan.kernel; }

 private:
  GemmWeight weight(std::int64_t outputs, std::int64_t inputs) {
    return weight_of(memory_, format_, outputs, inputs);
  }

  Memory memory_;
  Gemm& gemm_;
  Model model_;
  Format format_;
  std::int64_t m_;
  std::vector<GemmCall> calls_;
};

// Measures a graph of `rounds` rounds of GEMMs, whose weights have `bytes` together, and reports
// what one of a round's `calls` takes.
void measure(benchmark::State& state, Backend& backend, Stream& stream, Graph& graph, int rounds,
             double bytes, double calls) {
  double seconds = 1e9;
  for (auto _ : state) {
    const double taken = seconds_of(graph, backend, stream) / rounds;
    state.SetIterationTime(taken);
    seconds = std::min(seconds, taken);
  }
  const double limit = read_bandwidth(backend, stream, std::size_t{2} << 30);
  state.counters["us"] = seconds / calls * 1e6;
  state.counters["TB_per_s"] = bytes / seconds * 1e-12;
  state.counters["limit_TB_per_s"] = limit * 1e-12;
  state.counters["of_limit"] = bytes / seconds / limit;
  state.counters["over_floor_us"] = (seconds - bytes / limit) / calls * 1e6;
}

// only: which of a layer's GEMMs; -1: all.
void layers_in_graph(benchmark::State& state, const Model& model, const Format& format,
                     std::int64_t m, int only) {
  const auto backend = nvllm::testing::backend_or_skip(state, DeviceKind::cuda);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  Layers layers(*backend, *stream, *gemm, model, format, m, only);
  layers.tune(*stream);
  constexpr int kRounds = 4;
  const auto graph = backend->capture(*stream, [&] {
    for (int round = 0; round < kRounds; ++round) layers.enqueue(only, *stream);
  });
  measure(state, *backend, *stream, *graph, kRounds, layers.bytes(only),
          only < 0 ? 1 : static_cast<double>(model.layers));
  if (only >= 0) state.counters["kernel"] = static_cast<double>(layers.kernel(only));
}

// An LM head, behind the last norm.
void lm_head_in_graph(benchmark::State& state, const Model& model, const Format& format,
                      std::int64_t m) {
  const auto backend = nvllm::testing::backend_or_skip(state, DeviceKind::cuda);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  Memory memory(*backend, *stream);
  const auto rows = [&] {
    return TensorView(memory.floats(m * model.hidden * 2), kType, {m, model.hidden});
  };
  const GemmWeight weight = weight_of(memory, format, kVocabulary, model.hidden);
  GemmOperands operands{
      .out = TensorView(memory.floats(m * kVocabulary * 4), DType::f32, {m, kVocabulary}),
      .x = rows()};
  operands.prologue.norm_weight = TensorView(rows().data, kType, {model.hidden});
  operands.prologue.prepared = rows();
  const GemmCall call = gemm->call(weight, operands, {.prologue = Prologue::rms_norm});
  gemm->tune({&call, 1}, *stream);
  constexpr int kRounds = 4;
  const auto graph = backend->capture(*stream, [&] {
    for (int round = 0; round < kRounds; ++round) gemm->run(call, *stream);
  });
  measure(state, *backend, *stream, *graph, kRounds, bytes_of(weight), 1);
  state.counters["kernel"] = static_cast<double>(call.plan.kernel);
}

const bool registered = [] {
  for (const Model& model : kModels) {
    for (const std::int64_t m : {1, 2, 4, 8, 16, 32, 64, 128}) {
      for (const Format& format : kFormats) {
        const auto add = [&](const std::string& name, const auto& run) {
          benchmark::RegisterBenchmark(
              (name + "/" + model.name + "/" + format.name + "/" + std::to_string(m)).c_str(), run)
              ->UseManualTime()
              ->Iterations(3);
        };
        const auto add_layers = [&](const std::string& name, int only) {
          add(name,
              [=](benchmark::State& state) { layers_in_graph(state, model, format, m, only); });
        };
        add_layers("layers", -1);
        for (int i = 0; i < 4; ++i) add_layers(std::string("gemm/") + Layers::kNames[i], i);
        add("lm_head", [=](benchmark::State& state) { lm_head_in_graph(state, model, format, m); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
