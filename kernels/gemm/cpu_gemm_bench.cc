// GEMMs on the CPU with all cores, each beside its limit, measured in alternation with it.
//
// gemv: bytes of weights per second, over matrices that together are beyond the caches. "limit" is
// the rate of reading the same memory, the better of two ways; "of_limit" the share of it reached.
//
// gemm: M = 512, operations per second, against oneDNN with the weights as they are ("plain") and
// with weights that it has reordered beforehand ("packed"); "of_best" is the ratio to the faster
// one.
//
// quantized: either, with a quantized weight and bfloat16 x, beside the same GEMM with a bfloat16
// weight: "of_bfloat16" is the ratio of their times.
//
// grouped: the experts of a mixture, for as many tokens, each of which goes through 4 of 32. One
// token: bytes of weights beside reading them, as gemv. More: "of_one_gemm" is the ratio to one
// GEMM of as many rows, which reads a single expert's weights; "of_token_by_token" to calls with
// one token each. Times are the least processor time of all threads, divided by their number, so
// that they mean something on cores that others use, too.
//
// Other figures are medians.
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "device/backend.h"
#include "device/cpu/stream.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/onednn.h"

namespace nvllm::kernels {
namespace {

struct Shape {
  std::int64_t m, outputs, inputs;
  DType dtype;
};

constexpr std::size_t kBeyondCaches = std::size_t{768} << 20;

template <typename Function>
double seconds_of(Function&& function) {
  const std::int64_t start = now_ns();
  function();
  return seconds_since(start);
}

// The CPU time that all threads of this process have used, in seconds.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Measures calls in a row, as in a step of a model, after as many calls that wake threads and warm
// caches.
template <typename Run>
double seconds_per_call(Run&& run) {
  constexpr double kWarmUpSeconds = 3e-3;
  int calls = 0;
  const std::int64_t start = now_ns();
  do {
    run(1);
    ++calls;
  } while (seconds_since(start) < kWarmUpSeconds);
  return seconds_of([&] { run(calls); }) / calls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Reads [from, from + bytes), a multiple of 256; with kPrefetch > 0, prefetching lines that
// far ahead.
template <std::size_t kPrefetch>
std::int64_t read(const std::byte* from, std::size_t bytes) {
  __m256i sums[4] = {};
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (std::size_t line = 0; line < 256; line += 64) {
      if constexpr (kPrefetch > 0) _mm_prefetch(from + i + line + kPrefetch, _MM_HINT_T1);
    }
    for (std::size_t word = 0; word < 8; ++word) {
      const auto* at = reinterpret_cast<const __m256i*>(from + i + word * 32);
      sums[word % 4] = _mm256_xor_si256(sums[word % 4], _mm256_load_si256(at));
    }
  }
  const __m256i sum =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return _mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 1) ^
         _mm256_extract_epi64(sum, 2) ^ _mm256_extract_epi64(sum, 3);
}

// Seconds of reading it all with all cores.
template <std::size_t kPrefetch>
double read_all(const Buffer& buffer, Stream& stream) {
  constexpr std::int64_t kPart = 64 << 10;
  std::atomic<std::int64_t> sink{0};
  auto& queue = cpu::stream(stream);
  return seconds_of([&] {
    queue.submit([&, &pool = queue.thread_pool()] {
      pool.run(static_cast<std::int64_t>(buffer.bytes()) / kPart, [&](std::int64_t begin,
                                                                      std::int64_t end) {
        sink += read<kPrefetch>(static_cast<const std::byte*>(buffer.data()) + begin * kPart,
                                (end - begin) * kPart);
      });
    });
    queue.synchronize();
  });
}

GemmCall call_of(Gemm& gemm, const Shape& shape, void* out, void* x, void* weight) {
  return gemm.call({.values = TensorView(weight, shape.dtype, {shape.outputs, shape.inputs})},
                   {.out = TensorView(out, shape.dtype, {shape.m, shape.outputs}),
                    .x = TensorView(x, shape.dtype, {shape.m, shape.inputs})});
}

void run_gemv(benchmark::State& state, Shape shape) {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  const std::size_t size = size_of(shape.dtype), bytes = shape.outputs * shape.inputs * size;
  const std::size_t copies = std::max<std::size_t>(1, kBeyondCaches / bytes);
  const Buffer weights = backend->allocate(MemoryKind::device, kBeyondCaches, "benchmark");
  const Buffer x =
      backend->allocate(MemoryKind::device, shape.m * shape.inputs * size, "benchmark");
  const Buffer out =
      backend->allocate(MemoryKind::device, shape.m * shape.outputs * size, "benchmark");
  for (const Buffer* buffer : {&weights, &x}) {
    backend->fill(buffer->data(), 0, buffer->bytes(), *stream);
  }
  stream->synchronize();

  std::vector<double> ours, plain, prefetching;
  for (auto _ : state) {
    plain.push_back(read_all<0>(weights, *stream));
    ours.push_back(seconds_of([&] {
      for (std::size_t copy = 0; copy < copies; ++copy) {
        auto* weight = static_cast<std::byte*>(weights.data()) + copy * bytes;
        gemm->run(call_of(*gemm, shape, out.data(), x.data(), weight), *stream);
      }
      stream->synchronize();
    }));
    prefetching.push_back(read_all<32 << 10>(weights, *stream));
    state.SetIterationTime(ours.back() / static_cast<double>(copies));
  }
  const double rate = static_cast<double>(copies * bytes) / median(ours);
  const double limit =
      static_cast<double>(kBeyondCaches) / std::min(median(plain), median(prefetching));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  state.counters["us_per_call"] = median(ours) / static_cast<double>(copies) * 1e6;
  state.counters["GB_per_s"] = rate * 1e-9;
  state.counters["limit_GB_per_s"] = limit * 1e-9;
  state.counters["of_limit"] = rate / limit;
}

void run_gemm(benchmark::State& state, Shape shape) {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  const std::size_t size = size_of(shape.dtype);
  const auto zeros = [&](std::int64_t elements) {
    Buffer buffer = backend->allocate(MemoryKind::device, elements * size, "benchmark");
    backend->fill(buffer.data(), 0, buffer.bytes(), *stream);
    return buffer;
  };
  const Buffer x = zeros(shape.m * shape.inputs), out = zeros(shape.m * shape.outputs),
               weight = zeros(shape.outputs * shape.inputs);
  const GemmCall call = call_of(*gemm, shape, out.data(), x.data(), weight.data());
  gemm->tune(std::span(&call, 1), *stream);

  std::string why_not;
  std::unique_ptr<OneDnnGemm> others[2];
  for (int i = 0; i < 2; ++i) {
    others[i] = OneDnnGemm::create(shape.dtype, shape.m, shape.outputs, shape.inputs,
                                   static_cast<OneDnnGemm::Weights>(i), &why_not);
  }
  std::vector<double> ours, theirs[2];
  for (auto _ : state) {
    // Their threads spin for long after their work: 300,000 times, or 20 ms where a pause takes 140
    // cycles.
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    ours.push_back(seconds_per_call([&](int calls) {
      for (int i = 0; i < calls; ++i) gemm->run(call, *stream);
      stream->synchronize();
    }));
    for (int i = 0; i < 2; ++i) {
      if (others[i] == nullptr) continue;
      theirs[i].push_back(seconds_per_call([&](int calls) {
        for (int j = 0; j < calls; ++j) others[i]->run();
      }));
    }
    state.SetIterationTime(ours.back());
  }
  const double operations = 2.0 * static_cast<double>(shape.m * shape.outputs * shape.inputs);
  const double rate = operations / median(ours);
  state.counters["us_per_call"] = median(ours) * 1e6;
  state.counters["GFLOP_per_s"] = rate * 1e-9;
  double best = 0;
  const char* names[] = {"onednn_plain_GFLOP_per_s", "onednn_packed_GFLOP_per_s"};
  for (int i = 0; i < 2; ++i) {
    if (theirs[i].empty()) continue;
    const double other = operations / median(theirs[i]);
    best = std::max(best, other);
    state.counters[names[i]] = other * 1e-9;
  }
  if (best > 0) {
    state.counters["of_best"] = rate / best;
  } else {
    state.SetLabel("not compared with oneDNN: " + why_not);
  }
}

struct QuantizedCase {
  std::int64_t m, outputs, inputs;
  WeightFormat format;
  std::int64_t group;
  bool weight_only;

  QuantizedShape weight() const { return {format, outputs, inputs, group}; }
  std::size_t weight_bytes() const { return weight().value_bytes() + weight().scale_bytes(); }
  GemmCall call(Gemm& gemm, const Buffer& out, const Buffer& x, std::byte* at) const {
    GemmWeight quantized{.values = TensorView(at, DType::u8, {outputs, weight().row_bytes()}),
                         .format = format};
    quantized.quantized = {.scales = TensorView(at + weight().value_bytes(), weight().scale_type(),
                                                {outputs, weight().scale_columns()}),
                           .inputs = inputs,
                           .group = group,
                           .weight_only = weight_only};
    return gemm.call(quantized, {.out = TensorView(out.data(), DType::bf16, {m, outputs}),
                                 .x = TensorView(x.data(), DType::bf16, {m, inputs})});
  }
};

// Few rows read weights that lie beyond the caches, many the same ones again and again.
void run_quantized(benchmark::State& state, QuantizedCase shape) {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  const Shape plain{shape.m, shape.outputs, shape.inputs, DType::bf16};
  const std::size_t plain_bytes = shape.outputs * shape.inputs * 2;
  const bool many = shape.m > 16;
  const std::size_t memory = many ? plain_bytes : kBeyondCaches;
  const auto allocate = [&](std::size_t bytes) {
    Buffer buffer = backend->allocate(MemoryKind::device, bytes, "benchmark");
    backend->fill(buffer.data(), 0, bytes, *stream);
    return buffer;
  };
  const Buffer weights = allocate(memory), x = allocate(shape.m * shape.inputs * 2),
               out = allocate(shape.m * shape.outputs * 2);
  stream->synchronize();
  // Seconds of a call, of calls with all weights in a row.
  const auto measure = [&](std::size_t bytes, auto&& call_at) {
    const auto copies = static_cast<int>(many ? 1 : memory / bytes);
    const auto run = [&](int calls) {
      for (int i = 0; i < calls; ++i) {
        gemm->run(call_at(static_cast<std::byte*>(weights.data()) + i % copies * bytes), *stream);
      }
      stream->synchronize();
    };
    if (many) return seconds_per_call(run);
    return seconds_of([&] { run(copies); }) / copies;
  };
  std::vector<double> ours, floats, reads;
  for (auto _ : state) {
    ours.push_back(measure(shape.weight_bytes(),
                           [&](std::byte* at) { return shape.call(*gemm, out, x, at); }));
    floats.push_back(measure(plain_bytes, [&](std::byte* at) {
      return call_of(*gemm, plain, out.data(), x.data(), at);
    }));
    if (!many) reads.push_back(read_all<32 << 10>(weights, *stream));
    state.SetIterationTime(ours.back());
  }
  const double seconds = median(ours);
  state.counters["us_per_call"] = seconds * 1e6;
  state.counters["of_bfloat16"] = median(floats) / seconds;
  const double operations = 2.0 * static_cast<double>(shape.m * shape.outputs * shape.inputs);
  state.counters["GFLOP_per_s"] = operations / seconds * 1e-9;
  if (many) return;
  const double rate = static_cast<double>(shape.weight_bytes()) / seconds;
  const double limit = static_cast<double>(kBeyondCaches) / median(reads);
  state.counters["GB_per_s"] = rate * 1e-9;
  state.counters["limit_GB_per_s"] = limit * 1e-9;
  state.counters["of_limit"] = rate / limit;
}

// Token t has one row in each of the experts 8 n + t % 8, for n from 0 to 3.
struct GroupedCase {
  static constexpr std::int64_t kExperts = 32, kPerToken = 4, kOutputs = 1536, kInputs = 1024;
  std::int64_t tokens;
  WeightFormat format;

  std::int64_t rows() const { return tokens * kPerToken; }
  QuantizedShape weight() const {
    const std::int64_t group = format == WeightFormat::fp8 ? kFp8Group : 32;
    return {format, kExperts * kOutputs, kInputs, group};
  }
  std::size_t weight_bytes() const {
    if (!is_quantized(format)) return kExperts * kOutputs * kInputs * size_of(type());
    return weight().value_bytes() + weight().scale_bytes();
  }
  DType type() const { return format == WeightFormat::f32 ? DType::f32 : DType::bf16; }

  // The weight of the first `experts` experts; the weights lie at `at`.
  GemmWeight weight_at(std::byte* at, std::int64_t experts) const {
    const std::int64_t outputs = experts * kOutputs;
    if (!is_quantized(format)) return {.values = TensorView(at, type(), {outputs, kInputs})};
    const QuantizedShape all = weight();
    GemmWeight quantized{.values = TensorView(at, DType::u8, {outputs, all.row_bytes()}),
                         .format = format};
    quantized.quantized = {.scales = TensorView(at + all.value_bytes(), all.scale_type(),
                                                {outputs, all.scale_columns()}),
                           .inputs = kInputs,
                           .group = all.group};
    return quantized;
  }
  // Where the rows of each expert begin, of tokens [begin, end).
  static std::vector<std::int32_t> starts(std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> start = {0};
    for (std::int64_t expert = 0; expert < kExperts; ++expert) {
      std::int32_t rows = 0;
      for (std::int64_t token = begin; token < end; ++token)
        rows += token % 8 == expert % 8 ? 1 : 0;
      start.push_back(start.back() + rows);
    }
    return start;
  }
};

void run_grouped(benchmark::State& state, GroupedCase shape) {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  const bool many = shape.tokens > 1;
  const auto layers = many ? 1 : kBeyondCaches / shape.weight_bytes();
  constexpr int kByte = 0x3c;  // small numbers, in all formats
  const auto allocate = [&](std::size_t bytes) {
    Buffer buffer = backend->allocate(MemoryKind::device, bytes, "benchmark");
    backend->fill(buffer.data(), kByte, bytes, *stream);
    return buffer;
  };
  const std::size_t element = size_of(shape.type());
  const Buffer weights = allocate(many ? shape.weight_bytes() : kBeyondCaches),
               x = allocate(shape.rows() * GroupedCase::kInputs * element),
               out = allocate(shape.rows() * GroupedCase::kOutputs * element);
  stream->synchronize();
  auto* const memory = static_cast<std::byte*>(weights.data());
  const auto call = [&](std::byte* at, std::vector<std::int32_t>& start) {
    const std::int64_t rows = start.back();
    gemm->run_grouped({.weight = shape.weight_at(at, GroupedCase::kExperts),
                       .start = TensorView(start.data(), DType::i32, {std::ssize(start)}),
                       .out = TensorView(out.data(), shape.type(), {rows, GroupedCase::kOutputs}),
                       .x = TensorView(x.data(), shape.type(), {rows, GroupedCase::kInputs})},
                      *stream);
  };
  // One token goes through other experts each time, so that caches do not have them.
  std::vector<std::vector<std::int32_t>> all = {GroupedCase::starts(0, shape.tokens)};
  for (std::int64_t t = 1; !many && t < 8; ++t) all.push_back(GroupedCase::starts(t, t + 1));
  std::size_t turn = 0;
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::int64_t t = 0; t < shape.tokens; ++t) tokens.push_back(GroupedCase::starts(t, t + 1));
  const int threads = cpu::stream(*stream).thread_pool().size();
  const auto best = [&](double& seconds, auto&& run) {
    const double start = cpu_seconds();
    run();
    stream->synchronize();
    seconds = std::min(seconds, (cpu_seconds() - start) / threads);
  };
  double ours = 1e9, one_gemm = 1e9, one_by_one = 1e9, reading = 1e9;
  for (auto _ : state) {
    auto& start = all[turn++ % all.size()];
    best(ours, [&] {
      for (std::size_t n = 0; n < layers; ++n) call(memory + n * shape.weight_bytes(), start);
    });
    state.SetIterationTime(ours);
    if (!many) {
      best(reading, [&] { read_all<32 << 10>(weights, *stream); });
      continue;
    }
    best(one_gemm, [&] {
      gemm->run(
          gemm->call(
              shape.weight_at(memory, 1),
              {.out = TensorView(out.data(), shape.type(), {shape.rows(), GroupedCase::kOutputs}),
               .x = TensorView(x.data(), shape.type(), {shape.rows(), GroupedCase::kInputs})}),
          *stream);
    });
    best(one_by_one, [&] {
      for (auto& start : tokens) call(memory, start);
    });
  }
  state.counters["us_per_call"] = ours / static_cast<double>(layers) * 1e6;
  if (many) {
    const double operations =
        2.0 * static_cast<double>(shape.rows()) * GroupedCase::kOutputs * GroupedCase::kInputs;
    state.counters["GFLOP_per_s"] = operations / ours * 1e-9;
    state.counters["of_one_gemm"] = one_gemm / ours;
    state.counters["of_token_by_token"] = one_by_one / ours;
    return;
  }
  const double read = static_cast<double>(layers * shape.weight_bytes()) * GroupedCase::kPerToken /
                      GroupedCase::kExperts;
  const double limit = static_cast<double>(kBeyondCaches) / reading;
  state.counters["GB_per_s"] = read / ours * 1e-9;
  state.counters["limit_GB_per_s"] = limit * 1e-9;
  state.counters["of_limit"] = read / ours / limit;
}

std::string name_of_case(const QuantizedCase& shape) {
  return std::string("cpu_gemm/quantized/") + name_of(shape.format) + "-" +
         std::to_string(shape.group) + (shape.weight_only ? "-weight-only/" : "/") +
         std::to_string(shape.m) + "x" + std::to_string(shape.inputs) + "->" +
         std::to_string(shape.outputs);
}

std::string name_of_case(const char* what, const Shape& shape) {
  return std::string("cpu_gemm/") + what + "/" + name_of(shape.dtype) + "/" +
         std::to_string(shape.m) + "x" + std::to_string(shape.inputs) + "->" +
         std::to_string(shape.outputs);
}

// Registers all cases when the program starts.
const bool registered = [] {
  struct {
    std::int64_t inputs, outputs;
  } constexpr kGemvs[] = {{2560, 19456}, {4096, 6144}, {1024, 4096}, {576, 1536}, {576, 49152}},
              kGemms[] = {{576, 960}, {576, 3072}, {1536, 576}, {2560, 6144}, {4096, 4096}};
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const auto& [inputs, outputs] : kGemvs) {
      for (const std::int64_t m : {1, 4, 16}) {
        const Shape shape{m, outputs, inputs, dtype};
        benchmark::RegisterBenchmark(name_of_case("gemv", shape).c_str(),
                                     [=](benchmark::State& state) { run_gemv(state, shape); })
            ->UseManualTime()
            ->Iterations(7);
      }
    }
    for (const auto& [inputs, outputs] : kGemms) {
      const Shape shape{512, outputs, inputs, dtype};
      benchmark::RegisterBenchmark(name_of_case("gemm", shape).c_str(),
                                   [=](benchmark::State& state) { run_gemm(state, shape); })
          ->UseManualTime()
          ->Iterations(11);
    }
  }
  struct {
    WeightFormat format;
    std::int64_t group;
    bool weight_only;
  } constexpr kFormats[] = {{WeightFormat::int4, 32, false},  {WeightFormat::int8, 32, false},
                            {WeightFormat::int4, 128, false}, {WeightFormat::fp8, 128, false},
                            {WeightFormat::int4, 32, true},   {WeightFormat::int8, 32, true},
                            {WeightFormat::mxfp4, 32, true}};
  for (const auto& [format, group, weight_only] : kFormats) {
    for (const auto& [inputs, outputs] : {kGemms[0], kGemms[1], kGemms[2], kGemms[4]}) {
      for (const std::int64_t m : {1, 4, 16, 64, 512}) {
        const QuantizedCase shape{m, outputs, inputs, format, group, weight_only};
        benchmark::RegisterBenchmark(name_of_case(shape).c_str(),
                                     [=](benchmark::State& state) { run_quantized(state, shape); })
            ->UseManualTime()
            ->Iterations(7);
      }
    }
  }
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32, WeightFormat::int8,
                                    WeightFormat::int4, WeightFormat::mxfp4}) {
    for (const std::int64_t count : {1, 16, 64, 128, 192, 512}) {
      const std::string name =
          std::string("cpu_gemm/grouped/") + name_of(format) + "/" + std::to_string(count);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) {
                                     run_grouped(state, GroupedCase{count, format});
                                   })
          ->UseManualTime()
          ->Iterations(7);
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
