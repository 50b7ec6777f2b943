// Measures a decoder layer, and layers with one of the two blocks as small as possible, so that the
// time is that of the other ("attention", "mlp"), at the shapes of Qwen3-0.6B and 8B, on 1, 2 and 4
// ranks. A graph cycles through enough copies of the layer that no weight stays in a cache. Up to
// 16 rows are the newest tokens of as many sequences of 1024; more are one prompt.
//
// Counters: us per layer; bytes of this rank's weights and cache that are read; flops; floor_us,
// the longer of the times that these take at the bandwidth and the speed that the same device
// reaches in the same run (testing/bench_ranks.h); of_limit, floor_us / us. All are of rank 0.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "layers/decoder_layer.h"
#include "layers/rope.h"
#include "layers/testing/test_batch.h"
#include "testing/bench_ranks.h"

namespace nvllm::layers {
namespace {

using testing::BenchRank;
using testing::DeviceLimits;

struct Model {
  const char* name;
  std::int64_t hidden, intermediate, heads, kv_heads, head_dim;
};
constexpr Model kModels[] = {{"Qwen3-0.6B", 1024, 3072, 16, 8, 128},
                             {"Qwen3-8B", 4096, 12288, 32, 8, 128}};

enum What { attention, mlp, layer, kWhats };
constexpr const char* kNames[] = {"attention", "mlp", "decoder_layer"};
constexpr std::int64_t kRows[] = {1, 16, 512, 4096};
constexpr int kRowCounts = 4;
constexpr int kCpuRowCounts = 3;  // more would take seconds
constexpr std::int64_t kContext = 1024;

// Shrinks the block that is not measured to the minimum.
Model shape_of(Model model, What what) {
  if (what == attention) model.intermediate = 64;
  if (what == mlp) model.heads = model.kv_heads = 1;
  return model;
}

// The results of one rank.
struct Figures {
  struct Figure {
    double seconds, bytes, flops;
  };
  Figure of[kWhats][kRowCounts];
  DeviceLimits limits;
};

DecoderLayerConfig config_of(const Model& model) {
  DecoderLayerConfig config;
  config.attention = {.qkv = {"q", "k", "v"},
                      .output = "o",
                      .q_norm = "q_norm",
                      .k_norm = "k_norm",
                      .hidden = model.hidden,
                      .heads = model.heads,
                      .kv_heads = model.kv_heads,
                      .head_dim = model.head_dim,
                      .qk_norm = true};
  config.mlp = {.gate = "gate",
                .up = "up",
                .down = "down",
                .hidden = model.hidden,
                .intermediate = model.intermediate};
  config.attention_norm = "attention_norm";
  config.mlp_norm = "mlp_norm";
  return config;
}

// Copies of a layer with all that they need, and passes through them.
class Layers {
 public:
  Layers(BenchRank& rank, const Model& model, Shard shard)
      : rank_(rank),
        model_(model),
        heads_(heads_of(model.heads, model.kv_heads, shard)),
        norm_("norm", "norm", model.hidden, 1e-6f) {
    // Twice the L2 cache of a GPU, several times the L3 cache of a CPU.
    constexpr std::int64_t kWeightBytes = 256 << 20;
    do {
      const std::size_t begin = parameters_.size();
      layers_.emplace_back(str(copies()), config_of(model), shard).declare(parameters_);
      for (std::size_t i = begin; i < parameters_.size(); ++i)
        weight_bytes_ += 2 * parameters_[i]->elements();
    } while (weight_bytes_ < kWeightBytes);
    norm_.declare(parameters_);
    bind();
  }

  Figures::Figure measure(std::int64_t rows) {
    const bool prompt = rows > 16;
    const std::int64_t sequences = prompt ? 1 : rows, context = prompt ? rows : kContext;
    // A long pass evicts everything from the caches anyway.
    const std::int64_t passed = prompt ? std::min<std::int64_t>(copies(), 4) : copies();
    TestCache cache(*rank_.backend, {.layers = passed,
                                     .sequences = sequences,
                                     .tokens = context,
                                     .kv_heads = heads_.kv.size(),
                                     .head_dim = model_.head_dim,
                                     .dtype = DType::bf16});
    TestBatch batch(*rank_.backend, cache, rows);
    std::vector<TestBatch::Part> parts;
    for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
      const std::int64_t length = rows / sequences;
      parts.push_back({sequence, context - length,
                       std::vector<std::int32_t>(static_cast<std::size_t>(length))});
    }
    batch.load(parts, TestBatch::Logits::none, *rank_.stream);
    return {seconds(batch.batch(), cache), bytes(context * sequences),
            flops(rows, context, prompt)};
  }

 private:
  void bind();
  std::int64_t copies() const { return static_cast<std::int64_t>(layers_.size()); }
  double seconds(const Batch& batch, TestCache& cache);
  // Cache bytes that decoding reads; those of a prompt are negligible compared with its weights.
  double bytes(std::int64_t tokens) const {
    const std::int64_t cached = 2 * 2 * tokens * heads_.kv.size() * model_.head_dim;
    const std::int64_t weights = weight_bytes_ / copies();
    return static_cast<double>(weights + cached);
  }
  double flops(std::int64_t rows, std::int64_t context, bool prompt) const {
    const std::int64_t seen = prompt ? (context + 1) / 2 : context;
    const std::int64_t scores = 4 * seen * heads_.q.size() * model_.head_dim;
    const std::int64_t weights = weight_bytes_ / copies();
    return static_cast<double>(rows * (weights + scores));
  }

  BenchRank& rank_;
  Model model_;
  HeadShard heads_;
  std::deque<DecoderLayer> layers_;
  RmsNorm norm_;
  std::vector<Parameter*> parameters_;
  std::int64_t weight_bytes_ = 0;
  Buffer weights_;
};

// Fills all weights with a constant.
void Layers::bind() {
  std::int64_t elements = 0;
  const auto aligned = [](std::int64_t count) { return (count + 127) / 128 * 128; };
  for (const Parameter* parameter : parameters_) elements += aligned(parameter->elements());
  weights_ = testing::random_memory(*rank_.backend, *rank_.stream, elements);
  auto* data = static_cast<Bf16*>(weights_.data());
  for (Parameter* parameter : parameters_) {
    const auto& shape = parameter->shape;
    parameter->view = shape.size() == 1 ? TensorView(data, DType::bf16, {shape[0]})
                                        : TensorView(data, DType::bf16, {shape[0], shape[1]});
    data += aligned(parameter->elements());
  }
}

double Layers::seconds(const Batch& batch, TestCache& cache) {
  const std::int64_t rows = batch.rows();
  const std::size_t stream_bytes = Scratch::bytes_of(DType::bf16, rows, model_.hidden);
  const std::size_t scratch_bytes = layers_[0].scratch_bytes(rows, DType::bf16);
  const Buffer memory =
      rank_.backend->allocate(MemoryKind::device, 3 * stream_bytes + scratch_bytes, "activations");
  rank_.backend->fill(memory.data(), 0x3c, memory.bytes(), *rank_.stream);  // 0.0115 in bfloat16
  Scratch scratch(memory.data(), memory.bytes());
  const auto take = [&] { return scratch.allocate(DType::bf16, rows, model_.hidden); };
  const TensorView sum = take(), normed = take(), part = take();
  const RopeTable rope(RopeConfig{}, model_.head_dim, cache.shape().tokens, *rank_.backend);
  const Context context{*rank_.stream, *rank_.gemm, scratch, rank_.communicator.get()};
  const auto pass = [&] {
    ResidualStream stream{.hidden = sum, .normed = normed, .partial = part};
    for (std::size_t n = 0; n < cache.views().size(); ++n) {
      layers_[n].forward(stream,
                         {.batch = batch,
                          .kv = cache.cache(),
                          .layer = static_cast<std::int64_t>(n),
                          .cos_sin = rope.cos_sin()},
                         context);
    }
    layers::complete_hidden(stream, norm_, context);  // adds the last pending part
  };
  rank_.gemm->record();
  pass();
  rank_.wait();
  rank_.gemm->tune_recorded(*rank_.stream);
  return rank_.seconds(pass) / static_cast<double>(cache.views().size());
}

Figures measure(BenchRank& rank, const Model& model) {
  Figures figures{};
  figures.limits = rank.limits();
  const Shard shard{rank.number, rank.ranks};
  for (const What what : {attention, mlp, layer}) {
    Layers layers(rank, shape_of(model, what), shard);
    const int counts = rank.backend->kind() == DeviceKind::cpu ? kCpuRowCounts : kRowCounts;
    for (int i = 0; i < counts; ++i) figures.of[what][i] = layers.measure(kRows[i]);
  }
  return figures;
}

using Results = testing::RankResults<Figures>;

void report(benchmark::State& state, Results& results, What what, int rows) {
  const Figures* figures = results.get(state);
  if (figures == nullptr) return;
  const Figures::Figure& figure = figures->of[what][rows];
  for (auto _ : state) state.SetIterationTime(figure.seconds);
  testing::report_limits(state, figures->limits, figure.seconds, figure.bytes, figure.flops);
}

// Registers all cases when the program starts.
const bool registered = [] {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const Model& model : kModels) {
      const bool small = &model == &kModels[0];
      for (const int ranks : {1, 2, 4}) {
        if (kind == DeviceKind::cpu && (!small || ranks > 2)) continue;
        if (!testing::why_no_bench_ranks(kind, ranks).empty()) continue;
        const auto results = std::make_shared<Results>(
            kind, ranks, [&](BenchRank& rank) { return measure(rank, model); });
        for (const What what : {attention, mlp, layer}) {
          for (int i = 0; i < (kind == DeviceKind::cpu ? kCpuRowCounts : kRowCounts); ++i) {
            benchmark::RegisterBenchmark(
                str("layer/", name_of(kind), "/", model.name, "/", kNames[what], "/rows:", kRows[i],
                    "/ranks:", ranks)
                    .c_str(),
                [=](benchmark::State& state) { report(state, *results, what, i); })
                ->UseManualTime()
                ->Iterations(1)
                ->Unit(benchmark::kMicrosecond);
          }
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::layers
