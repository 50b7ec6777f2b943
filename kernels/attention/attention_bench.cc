// Measures attention as prefill, as decode, and over an earlier part of the tokens, with a paged
// cache, in CUDA graphs. Prefill counts floating-point operations of the visible tokens (4 *
// head_dim each); its limit is what a large GEMM reaches in the same run. Decode counts bytes of
// keys and values read; its limit is the bandwidth of a GEMV or of a copy, whichever is higher.
// "of_limit" is the share reached. Decode cycles through enough caches that none stays in the L2
// cache of the GPU, and consecutive calls overlap. "in_layers" measures decode between the kernels
// that precede and follow it in a layer: the time that it adds to them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/backend.h"
#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/pointwise/random_fill.h"
#include "kernels/testing/bench.h"
#include "testing/bench_backend.h"

namespace nvllm::kernels {
namespace {

using testing::seconds_of;

struct Shape {
  std::int64_t sequences, rows, tokens;  // of each sequence
  std::int64_t heads, kv_heads, head_dim;
  std::int64_t block_size = 256;
  bool part = false;  // of tokens before the rows, all visible; results are float32
  std::int64_t layers =
      1;  // whose keys and values a block holds, one after the other, as the engine's do
  bool e4m3 = false;  // the cache

  bool prefill() const { return rows > 1; }
  DType kv_type() const { return e4m3 ? DType::u8 : DType::bf16; }
  std::int64_t kv_size() const { return e4m3 ? 1 : 2; }
};

// Memory of normally distributed numbers: with zeros the clocks would be higher.
Buffer random_memory(Backend& backend, Stream& stream, std::int64_t elements) {
  Buffer buffer = backend.allocate(MemoryKind::device, elements * sizeof(Bf16), "benchmark");
  RandomFill fill;
  fill.out = TensorView(buffer.data(), DType::bf16, {1, elements});
  fill.whole_columns = elements;
  random_fill(fill, stream);
  return buffer;
}

// The work per second of the fastest of a few runs of `calls` GEMMs.
double measure_gemm(Backend& backend, Stream& stream, std::int64_t rows, std::int64_t outputs,
                    std::int64_t inputs, int calls, double work) {
  const auto gemm = create_gemm(backend);
  const Buffer x = random_memory(backend, stream, rows * inputs);
  const Buffer weight = random_memory(backend, stream, outputs * inputs);
  const Buffer out = random_memory(backend, stream, rows * outputs);
  const GemmCall call =
      gemm->call({.values = TensorView(weight.data(), DType::bf16, {outputs, inputs})},
                 {.out = TensorView(out.data(), DType::bf16, {rows, outputs}),
                  .x = TensorView(x.data(), DType::bf16, {rows, inputs})});
  gemm->tune({&call, 1}, stream);
  const auto graph = backend.capture(stream, [&] {
    for (int i = 0; i < calls; ++i) gemm->run(call, stream);
  });
  return work * calls / seconds_of(*graph, stream);
}

double measured_flops(Backend& backend, Stream& stream) {
  const std::int64_t n = backend.kind() == DeviceKind::cuda ? 8192 : 1024;
  return measure_gemm(backend, stream, n, n, n, 2, 2.0 * static_cast<double>(n * n * n));
}

double measured_bandwidth(Backend& backend, Stream& stream) {
  const std::int64_t rows = backend.kind() == DeviceKind::cuda ? 1 << 17 : 1 << 14;
  const auto bytes = static_cast<double>(rows * 4096 * 2);
  const double read = measure_gemm(backend, stream, 1, rows, 4096, 2, bytes);
  const Buffer from = random_memory(backend, stream, rows * 4096);
  const Buffer to = random_memory(backend, stream, rows * 4096);
  const auto copy =
      backend.capture(stream, [&] { backend.copy(to.data(), from.data(), from.bytes(), stream); });
  return std::max(read, 2 * bytes / seconds_of(*copy, stream));
}

// Measured once per program, since it takes longer than many a benchmark.
template <DeviceKind kKind>
double limit_of(Backend& backend, Stream& stream, bool flops) {
  if (flops) {
    static const double limit = measured_flops(backend, stream);
    return limit;
  }
  static const double limit = measured_bandwidth(backend, stream);
  return limit;
}

// A call with its memory.
class Work {
 public:
  Work(Backend& backend, Stream& stream, const Shape& shape) : shape_(shape) {
    const std::int64_t rows = shape.sequences * shape.rows;
    const std::int64_t width = (shape.tokens + shape.block_size - 1) / shape.block_size;
    const std::int64_t blocks = width * shape.sequences;
    const std::int64_t cache = blocks * shape.block_size * shape.kv_heads * shape.head_dim;
    // Beyond 50 MB of L2, several times over; graphs use one cache after the other.
    const std::int64_t caches =
        shape.prefill() ? 1 : std::max<std::int64_t>(1, kDistinct / (2 * shape.kv_size() * cache));
    // With one layer, all keys precede all values; with several, a block has those of each layer.
    const std::int64_t part = shape.layers == 1 ? cache : cache / blocks;
    q_ = random_memory(backend, stream, rows * shape.heads * shape.head_dim);
    out_ = random_memory(backend, stream, rows * shape.heads * shape.head_dim);
    if (shape.part) out_ = random_memory(backend, stream, 2 * rows * shape.heads * shape.head_dim);
    const std::int64_t numbers = 2 * shape.sequences + 1 + blocks;
    numbers_ = backend.allocate(MemoryKind::device, numbers * sizeof(std::int32_t), "benchmark");
    const Buffer host =
        backend.allocate(MemoryKind::pinned, numbers * sizeof(std::int32_t), "benchmark");
    auto* starts = static_cast<std::int32_t*>(host.data());
    auto* lengths = starts + shape.sequences + 1;
    auto* table = lengths + shape.sequences;
    for (std::int64_t s = 0; s <= shape.sequences; ++s)
      starts[s] = static_cast<std::int32_t>(s * shape.rows);
    std::fill_n(lengths, shape.sequences, static_cast<std::int32_t>(shape.tokens));
    // Neighbouring blocks of a sequence lie far apart.
    for (std::int64_t i = 0; i < blocks; ++i)
      table[i] = static_cast<std::int32_t>(i % width * shape.sequences + i / width);
    backend.copy(numbers_.data(), host.data(), host.bytes(), stream);
    stream.synchronize();

    auto* there = static_cast<std::int32_t*>(numbers_.data());
    Attention call;
    call.q = TensorView(q_.data(), DType::bf16, {rows, shape.heads, shape.head_dim});
    call.out = TensorView(out_.data(), shape.part ? DType::f32 : DType::bf16,
                          {rows, shape.heads, shape.head_dim});
    call.query_start = TensorView(there, DType::i32, {shape.sequences + 1});
    call.kv_length = TensorView(there + shape.sequences + 1, DType::i32, {shape.sequences});
    if (shape.part) call.visible = call.kv_length;
    call.kv.block_table =
        TensorView(there + 2 * shape.sequences + 1, DType::i32, {shape.sequences, width});
    call.group = shape.heads / shape.kv_heads;
    call.scale = 0.1f;
    call.max_query_rows = shape.rows;
    call.max_kv_length = shape.tokens;
    call.history_is_visible = !shape.prefill();  // as in a step of the engine
    for (std::int64_t i = 0; i < caches; ++i) {
      const std::int64_t elements = 2 * cache * shape.layers;
      caches_.push_back(shape.e4m3 ? testing::random_e4m3(backend, stream, elements)
                                   : random_memory(backend, stream, elements));
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        auto* data =
            static_cast<unsigned char*>(caches_.back().data()) + layer * 2 * part * shape.kv_size();
        for (TensorView* half : {&call.kv.keys, &call.kv.values}) {
          *half = TensorView(data, shape.kv_type(),
                             {blocks, shape.block_size, shape.kv_heads, shape.head_dim});
          if (shape.layers > 1) half->stride[0] = 2 * part * shape.layers;
          data += part * shape.kv_size();
        }
        calls_.push_back(call);
      }
    }
  }

  void enqueue(int count, Stream& stream) const {
    for (int i = 0; i < count; ++i) attention(call(i), stream);
  }
  const Attention& call(int i) const { return calls_[i % calls_.size()]; }

  double flops() const {
    const double later = shape_.part ? 0 : (shape_.rows - 1) / 2.0;
    const double seen =
        static_cast<double>(shape_.rows) * (static_cast<double>(shape_.tokens) - later);
    return 4.0 * static_cast<double>(shape_.sequences * shape_.heads * shape_.head_dim) * seen;
  }
  double bytes() const {
    return 2.0 * static_cast<double>(shape_.kv_size() * shape_.sequences * shape_.tokens *
                                     shape_.kv_heads * shape_.head_dim);
  }

 private:
  static constexpr std::int64_t kDistinct = 400 << 20;

  const Shape shape_;
  Buffer q_, out_, numbers_;
  std::vector<Buffer> caches_;
  std::vector<Attention> calls_;
};

void attention_in_graph(benchmark::State& state, DeviceKind kind, Shape shape) {
  const auto backend = nvllm::testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  const double limit = kind == DeviceKind::cuda
                           ? limit_of<DeviceKind::cuda>(*backend, *stream, shape.prefill())
                           : limit_of<DeviceKind::cpu>(*backend, *stream, shape.prefill());
  const Work work(*backend, *stream, shape);
  const double amount = shape.prefill() ? work.flops() : work.bytes();
  // Enough calls in a graph that the cost of launching it does not count.
  const int calls = static_cast<int>(std::clamp(limit * 2e-3 / amount, 1.0, 64.0));
  const auto graph = backend->capture(*stream, [&] { work.enqueue(calls, *stream); });
  graph->launch(*stream);
  stream->synchronize();

  std::int64_t launches = 0;
  const std::int64_t start = now_ns();
  for (auto _ : state) {
    graph->launch(*stream);
    stream->synchronize();
    ++launches;
  }
  const double seconds = seconds_since(start) / static_cast<double>(launches * calls);
  state.counters["us_per_call"] = seconds * 1e6;
  if (shape.prefill()) {
    state.counters["TFLOP_per_s"] = amount / seconds * 1e-12;
    state.counters["limit_TFLOP_per_s"] = limit * 1e-12;
  } else {
    state.SetBytesProcessed(
        static_cast<std::int64_t>(static_cast<double>(launches * calls) * amount));
    state.counters["limit_GB_per_s"] = limit * 1e-9;
  }
  state.counters["of_limit"] = amount / seconds / limit;
}

// The kernels of a layer from the store of keys and values to the GEMM after attention, in a model
// with 1,024 columns.
class Layers {
 public:
  Layers(Backend& backend, Stream& stream, const Shape& shape)
      : work_(backend, stream, shape), gemm_(create_gemm(backend)) {
    const std::int64_t rows = shape.sequences, inputs = shape.heads * shape.head_dim;
    const std::int64_t qkv = inputs + 2 * shape.kv_heads * shape.head_dim;
    const auto take = [&](std::int64_t elements) {
      buffers_.push_back(random_memory(backend, stream, elements));
      return buffers_.back().data();
    };
    store_.qkv = TensorView(take(rows * qkv), DType::bf16, {rows, qkv});
    store_.q_norm = TensorView(take(shape.head_dim), DType::bf16, {shape.head_dim});
    store_.k_norm = store_.q_norm;
    store_.cos_sin = TensorView(take(2 * shape.head_dim), DType::f32, {1, shape.head_dim});
    store_.heads = shape.heads;
    // Zeros: all rows are at position 0 and stored to one slot, which costs as much.
    const std::size_t bytes = rows * sizeof(std::int64_t);
    buffers_.push_back(backend.allocate(MemoryKind::device, bytes, "benchmark"));
    backend.fill(buffers_.back().data(), 0, bytes, stream);
    store_.slot_mapping = TensorView(buffers_.back().data(), DType::i64, {rows});
    store_.positions = TensorView(buffers_.back().data(), DType::i32, {rows});
    sum_ = TensorView(take(rows * kColumns), DType::bf16, {rows, kColumns});
    weights_ = take(kLayers * kColumns * inputs);
  }

  void enqueue(bool with_attention, Stream& stream) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const Attention& call = work_.call(layer);
      const std::int64_t rows = call.q.shape[0], inputs = call.q.shape[1] * call.q.shape[2];
      store_.kv = call.kv;
      norm_rope_store(store_, stream);
      if (with_attention) attention(call, stream);
      const GemmWeight weight{
          .values = TensorView(static_cast<Bf16*>(weights_) + layer * kColumns * inputs,
                               DType::bf16, {kColumns, inputs})};
      const TensorView x(call.out.data, DType::bf16, {rows, inputs});
      gemm_->run(gemm_->call(weight, {.out = sum_, .x = x, .residual = sum_}), stream);
    }
  }

  static constexpr int kLayers = 28;

 private:
  static constexpr std::int64_t kColumns = 1024;

  const Work work_;
  std::unique_ptr<Gemm> gemm_;
  std::vector<Buffer> buffers_;
  void* weights_ = nullptr;
  NormRopeStore store_;
  TensorView sum_;
};

void attention_in_layers(benchmark::State& state, DeviceKind kind, Shape shape) {
  const auto backend = nvllm::testing::backend_or_skip(state, kind);
  if (backend == nullptr) return;
  const auto stream = backend->create_stream();
  Layers layers(*backend, *stream, shape);
  layers.enqueue(true, *stream);  // what is done once
  const auto others = backend->capture(*stream, [&] { layers.enqueue(false, *stream); });
  const auto all = backend->capture(*stream, [&] { layers.enqueue(true, *stream); });
  double seconds = 1e9;
  for (auto _ : state) seconds = std::min(seconds, testing::seconds_of(*all, *stream));
  const double without = testing::seconds_of(*others, *stream);
  state.counters["us_per_layer"] = seconds / Layers::kLayers * 1e6;
  state.counters["us_of_attention"] = (seconds - without) / Layers::kLayers * 1e6;
}

std::string name_of_case(DeviceKind kind, const Shape& shape) {
  return std::string("attention/") + name_of(kind) +
         (shape.e4m3 ? "/bfloat16_to_e4m3/" : "/bfloat16/") + std::to_string(shape.heads) + "x" +
         std::to_string(shape.kv_heads) + "x" + std::to_string(shape.head_dim) +
         (shape.part        ? "/part/"
          : shape.prefill() ? "/prefill/"
                            : "/decode/") +
         std::to_string(shape.sequences) + "x" + std::to_string(shape.tokens) +
         (shape.layers > 1 ? "/blocks_of_" + std::to_string(shape.block_size) + "_as_in_engine"
                           : "");
}

// Registers all cases when the program starts.
const bool registered = [] {
  const std::vector<std::pair<DeviceKind, Shape>> cases = {
      {DeviceKind::cpu, {1, 512, 512, 9, 3, 64}},
      {DeviceKind::cpu, {1, 1, 1024, 9, 3, 64}},
      {DeviceKind::cpu, {8, 1, 1024, 9, 3, 64}},
      {DeviceKind::cuda, {1, 512, 512, 32, 8, 128}},
      {DeviceKind::cuda, {1, 1024, 1024, 32, 8, 128}},
      {DeviceKind::cuda, {1, 2048, 2048, 32, 8, 128}},
      {DeviceKind::cuda, {1, 8192, 8192, 32, 8, 128}},
      {DeviceKind::cuda, {1, 16384, 16384, 32, 8, 128}},
      {DeviceKind::cuda, {1, 32768, 32768, 32, 8, 128}},
      {DeviceKind::cuda, {1, 512, 512, 32, 8, 128, 16, false, 36}},
      {DeviceKind::cuda, {1, 2048, 2048, 32, 8, 128, 16, false, 36}},
      {DeviceKind::cuda, {1, 8192, 8192, 32, 8, 128, 16, false, 36}},
      {DeviceKind::cuda, {1, 32768, 32768, 32, 8, 128, 16, false, 36}},
      {DeviceKind::cuda, {8, 1024, 1024, 16, 8, 128, 16}},
      {DeviceKind::cuda, {8, 1024, 1024, 32, 8, 128, 16, false, 36}},
      {DeviceKind::cuda, {64, 1024, 1024, 32, 8, 128, 16, false, 4}},
      {DeviceKind::cuda, {1, 4096, 4096, 32, 8, 128, 4096, true}},
      {DeviceKind::cuda, {1, 4096, 16384, 32, 8, 128, 4096, true}},
      {DeviceKind::cuda, {1, 1, 1024, 16, 8, 128, 16}},
      {DeviceKind::cuda, {1, 1, 1024, 32, 8, 128, 16}},
      {DeviceKind::cuda, {1, 1, 8192, 32, 8, 128, 16}},
      {DeviceKind::cuda, {8, 1, 1024, 32, 8, 128, 16}},
      {DeviceKind::cuda, {8, 1, 8192, 32, 8, 128, 16}},
      {DeviceKind::cuda, {1, 1, 32768, 32, 8, 128, 16}},
      {DeviceKind::cuda, {64, 1, 1024, 32, 8, 128, 16}},
      {DeviceKind::cuda, {256, 1, 1024, 32, 8, 128, 16}},
      {DeviceKind::cuda, {1, 8192, 8192, 16, 2, 256, 16}},
      {DeviceKind::cuda, {1, 1, 1024, 16, 2, 256, 16}},
      {DeviceKind::cuda, {1, 1, 131072, 16, 2, 256, 16}},
      {DeviceKind::cuda, {8, 1, 8192, 16, 2, 256, 16}},
      {DeviceKind::cuda, {64, 1, 1024, 16, 2, 256, 16}},
      {DeviceKind::cuda, {1, 4096, 4096, 16, 2, 512, 16}},
      {DeviceKind::cuda, {1, 1, 8192, 16, 2, 512, 16}},
      {DeviceKind::cuda, {8, 1, 8192, 16, 2, 512, 16}},
      {DeviceKind::cuda, {64, 1, 1024, 16, 2, 512, 16}}};
  const auto add = [](DeviceKind kind, const Shape& shape) {
    benchmark::RegisterBenchmark(name_of_case(kind, shape).c_str(), [kind, shape](
                                                                        benchmark::State& state) {
      attention_in_graph(state, kind, shape);
    })->UseRealTime();
  };
  for (const auto& [kind, shape] : cases) add(kind, shape);
  for (auto [kind, shape] : cases) {
    shape.e4m3 = true;
    add(kind, shape);
  }
  for (const Shape& shape : {Shape{1, 1, 1024, 16, 8, 128, 16},
                             {8, 1, 1024, 16, 8, 128, 16},
                             {1, 1, 8192, 32, 8, 128, 16},
                             {1, 1, 32768, 32, 8, 128, 16}}) {
    const std::string name = name_of_case(DeviceKind::cuda, shape) + "/in_layers";
    benchmark::RegisterBenchmark(name.c_str(), [shape](benchmark::State& state) {
      attention_in_layers(state, DeviceKind::cuda, shape);
    })->UseRealTime();
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
