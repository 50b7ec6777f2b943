// Whole decoders with random weights on 1, 2 and 4 ranks: a decode step at a context of 1024, and a
// prompt of 1024 tokens, in a graph, up to the logits.
//
// Counters: us per step; bytes, those of this rank's weights and cache that a step reads, and
// flops; floor_us, the time that these take at the bandwidth and the speed that the same device
// reaches in the same run (testing/bench_ranks.h), whichever is longer; of_limit, floor_us / us.
// All are of rank 0.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "layers/testing/test_batch.h"
#include "model/decoder.h"
#include "model/loading/loader.h"
#include "testing/bench_ranks.h"

namespace nvllm::model {
namespace {

using layers::TestBatch;
using layers::TestCache;
using testing::BenchRank;

struct Shape {
  const char* name;
  std::int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary;
  bool tied, qk_norm;
};
constexpr Shape kCpuModels[] = {{"SmolLM2-135M", 576, 1536, 30, 9, 3, 64, 49152, true, false}};
constexpr Shape kGpuModels[] = {{"Qwen3-0.6B", 1024, 3072, 28, 16, 8, 128, 151936, true, true},
                                {"Qwen3-4B", 2560, 9728, 36, 32, 8, 128, 151936, true, true},
                                {"Qwen3-8B", 4096, 12288, 36, 32, 8, 128, 151936, false, true}};

struct Step {
  const char* name;
  std::int64_t sequences, rows;  // rows of each sequence
};
constexpr Step kSteps[] = {
    {"decode/batch:1", 1, 1}, {"decode/batch:16", 16, 1}, {"prompt:1024", 1, 1024}};
constexpr int kStepCount = 3;
constexpr std::int64_t kContext = 1024;

struct Figures {
  struct Figure {
    double seconds, bytes, flops;
  };
  Figure of[kStepCount];
  testing::DeviceLimits limits;
};

ModelConfig config_of(const Shape& shape) {
  ModelConfig config;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.vocab_size = shape.vocabulary;
  config.tied_embeddings = shape.tied;
  config.qk_norm = shape.qk_norm;
  return config;
}

// Weights that a step reads: all but the rows of an embedding that is no head.
double weight_bytes(const Decoder& decoder) {
  const auto all = bytes_of(decoder.parameters(), decoder.dtype()).used;
  const bool tied = decoder.config().tied_embeddings;
  return static_cast<double>(all - (tied ? 0 : decoder.parameters()[0]->view.bytes()));
}

Figures::Figure measure(BenchRank& rank, const Decoder& decoder, const Step& step) {
  const ModelConfig& config = decoder.config();
  const std::int64_t rows = step.sequences * step.rows;
  const std::int64_t kv_heads = decoder.heads().kv.size(), heads = decoder.heads().q.size();
  TestCache cache(*rank.backend, {.layers = config.layers,
                                  .sequences = step.sequences,
                                  .tokens = kContext,
                                  .kv_heads = kv_heads,
                                  .head_dim = config.head_dim,
                                  .dtype = decoder.dtype()});
  for (const kernels::KvView& view : cache.views()) {  // 0.0115 in bfloat16
    rank.backend->fill(view.keys.data, 0x3c, view.keys.bytes(), *rank.stream);
    rank.backend->fill(view.values.data, 0x3c, view.values.bytes(), *rank.stream);
  }
  TestBatch batch(*rank.backend, cache, rows);
  std::vector<TestBatch::Part> parts;
  for (std::int64_t sequence = 0; sequence < step.sequences; ++sequence) {
    TestBatch::Part part{sequence, kContext - step.rows, {}};
    for (std::int64_t row = 0; row < step.rows; ++row) {
      part.tokens.push_back(static_cast<std::int32_t>((sequence * 977 + row * 31) % 49000));
    }
    parts.push_back(part);
  }
  batch.load(parts, TestBatch::Logits::last, *rank.stream);
  DecoderMemory memory(decoder, {.rows = rows, .logit_rows = step.sequences, .positions = kContext},
                       *rank.backend);
  const ForwardResources device{*rank.stream, *rank.gemm, rank.communicator.get()};
  decoder.tune(batch.batch(), cache.cache(), memory, device);

  Figures::Figure figure;
  figure.seconds =
      rank.seconds([&] { decoder.forward(batch.batch(), cache.cache(), memory, device); });
  const double weights = weight_bytes(decoder);
  const double head = static_cast<double>(decoder.head().vocabulary().size() * config.hidden_size);
  const std::int64_t seen = step.rows == 1 ? kContext : (kContext + 1) / 2;  // by a row
  figure.bytes = weights + static_cast<double>(4 * step.sequences * kContext * config.layers *
                                               kv_heads * config.head_dim);
  // The head works on the last rows only; two flops and two bytes per weight.
  figure.flops = static_cast<double>(rows) * (weights - 2 * head) +
                 static_cast<double>(step.sequences) * 2 * head +
                 static_cast<double>(rows * 4 * seen * config.layers * heads * config.head_dim);
  return figure;
}

Figures measure(BenchRank& rank, const Shape& shape) {
  Figures figures{};
  figures.limits = rank.limits();
  const Decoder decoder(config_of(shape), {rank.number, rank.ranks}, DType::bf16);
  const Buffer weights = bind_parameters(decoder.parameters(), DType::bf16, *rank.backend);
  load_dummy(decoder.parameters(), *rank.backend, 0.02f, 1);
  for (int i = 0; i < kStepCount; ++i) figures.of[i] = measure(rank, decoder, kSteps[i]);
  return figures;
}

void add(DeviceKind kind, const Shape& shape, int ranks) {
  if (!testing::why_no_bench_ranks(kind, ranks).empty()) return;
  const auto results = std::make_shared<testing::RankResults<Figures>>(
      kind, ranks, [&](BenchRank& rank) { return measure(rank, shape); });
  for (int i = 0; i < kStepCount; ++i) {
    const std::string name =
        str("decoder/", name_of(kind), "/", shape.name, "/", kSteps[i].name, "/ranks:", ranks);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](benchmark::State& state) {
                                   const Figures* figures = results->get(state);
                                   if (figures == nullptr) return;
                                   const Figures::Figure& figure = figures->of[i];
                                   for (auto _ : state) state.SetIterationTime(figure.seconds);
                                   testing::report_limits(state, figures->limits, figure.seconds,
                                                          figure.bytes, figure.flops);
                                 })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMicrosecond);
  }
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const int ranks : {1, 2}) {
    for (const Shape& shape : kCpuModels) add(DeviceKind::cpu, shape, ranks);
  }
  for (const int ranks : {1, 2, 4}) {
    for (const Shape& shape : kGpuModels) add(DeviceKind::cuda, shape, ranks);
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::model
