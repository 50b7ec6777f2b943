// Compares DecoderLayer over ranks with the same layer on one rank: its attention block alone,
// through a cache of this rank's heads; its MLP block alone; two layers in sequence; and deferred
// norms.
#include <doctest/doctest.h>

#include <deque>
#include <string>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/references.h"
#include "layers/decoder_layer.h"
#include "layers/rope.h"
#include "layers/testing/layer_rank.h"
#include "layers/testing/test_batch.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t heads, kv_heads, head_dim, hidden, intermediate;
  bool bias, qk_norm;
  bool paged = true;
  kernels::Activation activation = kernels::Activation::silu;
  bool result_norms = false;  // with result norms, whose weights have an offset of 1
};
// Which blocks add something; the weights of the other block's last GEMM are zeros.
enum class Blocks { attention, mlp, both };
using Rounds = std::vector<std::vector<TestBatch::Part>>;  // the parts of each batch
constexpr std::int64_t kTokens = 40;

DecoderLayerConfig config_of(const Shape& shape, Blocks blocks) {
  DecoderLayerConfig config;
  config.attention = {.qkv = {"test.q", "test.k", "test.v"},
                      .output = blocks == Blocks::mlp ? "test.zero_o" : "test.o",
                      .q_norm = "test.q_norm",
                      .k_norm = "test.k_norm",
                      .hidden = shape.hidden,
                      .heads = shape.heads,
                      .kv_heads = shape.kv_heads,
                      .head_dim = shape.head_dim,
                      .qkv_bias = shape.bias,
                      .output_bias = shape.bias,
                      .qk_norm = shape.qk_norm};
  config.mlp = {.gate = "test.gate",
                .up = "test.up",
                .down = blocks == Blocks::attention ? "test.zero_down" : "test.down",
                .hidden = shape.hidden,
                .intermediate = shape.intermediate,
                .bias = shape.bias,
                .activation = shape.activation};
  config.attention_norm = "test.attention_norm";
  config.mlp_norm = "test.mlp_norm";
  if (shape.result_norms) {
    config.post_attention_norm = "test.post_attention_norm";
    config.post_mlp_norm = "test.post_mlp_norm";
    config.norm_weight_offset = config.attention.norm_weight_offset = 0.5f;
    config.attention.scale = 0.3f;
  }
  return config;
}

// The stream after each round has gone through all layers in sequence.
std::vector<float> streams(LayerRank& rank, const Shape& shape, Blocks blocks, int count,
                           const Rounds& rounds, DType dtype, Shard shard, const Context& context) {
  std::deque<DecoderLayer> layers;
  for (int n = 0; n < count; ++n) {
    rank.bind(layers.emplace_back("layers." + std::to_string(n), config_of(shape, blocks), shard),
              dtype);
  }
  RmsNorm norm("norm", "test.norm", shape.hidden, 1e-6f);
  rank.bind(norm, dtype);
  const RopeTable rope(RopeConfig{}, shape.head_dim, kTokens, rank.backend());
  TestCache cache(rank.backend(), {.layers = count,
                                   .sequences = 2,
                                   .tokens = kTokens,
                                   .kv_heads = layers[0].heads().kv.size(),
                                   .head_dim = shape.head_dim,
                                   .block_size = shape.paged ? 8 : 0,
                                   .dtype = dtype});
  TestBatch batch(rank.backend(), cache, kTokens);
  std::vector<float> all;
  for (std::size_t round = 0; round < rounds.size(); ++round) {
    batch.load(rounds[round], TestBatch::Logits::none, rank.stream());
    const std::int64_t rows = batch.batch().rows();
    ResidualStream stream{
        .hidden = rank.noise_tensor(std::to_string(round), dtype, rows, shape.hidden),
        .normed = rank.empty(dtype, rows, shape.hidden),
        .partial = rank.empty(dtype, rows, shape.hidden),
        .squares =
            rank.empty(DType::f32, shape.hidden / kernels::kSquaresColumns, kernels::kSquaresRows),
        .unfused_norms = shape.result_norms};
    for (std::size_t n = 0; n < layers.size(); ++n) {
      layers[n].forward(stream,
                        {.batch = batch.batch(),
                         .kv = cache.cache(),
                         .layer = static_cast<std::int64_t>(n),
                         .cos_sin = rope.cos_sin(),
                         .next = n + 1 < layers.size() ? &layers[n + 1] : nullptr,
                         .next_layer = static_cast<std::int64_t>(n) + 1},
                        context);
    }
    const std::vector<float> values = rank.values(complete_hidden(stream, norm, context));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<std::int32_t> tokens(std::size_t count) {
  return std::vector<std::int32_t>(count, 0);
}

// Prompts, their continuation in chunks, and single tokens.
Rounds rounds_of_two_sequences() {
  return {{{0, 0, tokens(19)}, {1, 0, tokens(3)}},
          {{0, 19, tokens(1)}, {1, 3, tokens(17)}},
          {{0, 20, tokens(1)}, {1, 20, tokens(1)}}};
}

Rounds prompt_and_token() {
  return {{{0, 0, tokens(21)}}, {{0, 21, tokens(1)}}};
}

TEST_CASE("attention over ranks adds to the stream what the whole attention adds") {
  constexpr Shape kShapes[] = {{9, 3, 16, 72, 64, false, true, true},
                               {6, 6, 8, 72, 64, true, false, true},
                               {6, 2, 16, 72, 64, true, false, false},
                               {2, 1, 32, 72, 64, false, true, true},
                               {8, 4, 24, 72, 64, false, false, true}};
  on_groups([&](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Rounds rounds = rounds_of_two_sequences();
        const auto expected =
            streams(rank, shape, Blocks::attention, 1, rounds, dtype, {0, 1}, rank.alone());
        const auto got = streams(rank, shape, Blocks::attention, 1, rounds, dtype, rank.shard(),
                                 rank.together());
        // Rounding errors of the norm, the first GEMM, RoPE, attention, each rank's part, their sum
        // and the stream; errors of both q and k affect the attention scores.
        CHECK(difference(got, expected, dtype,
                         {.roundings = 2 * (8 + rank.shard().ranks),
                          .length = 2 * shape.hidden + shape.heads * shape.head_dim + kTokens}) ==
              "");
      }
    }
  });
}

TEST_CASE("an MLP over ranks adds to the stream what the whole one adds") {
  using kernels::Activation;
  struct Case {
    std::size_t rows;
    Shape shape;
  };
  const Case cases[] = {{5, {4, 2, 8, 72, 104, false, false, true, Activation::silu}},
                        {1, {4, 2, 8, 64, 256, true, false, true, Activation::gelu}},
                        {7, {4, 2, 8, 40, 161, true, false, true, Activation::gelu_tanh}},
                        {3, {4, 2, 8, 24, 2, false, false, true, Activation::silu}}};
  on_groups([&](LayerRank& rank) {
    for (const auto& [rows, shape] : cases) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Rounds rounds = {{{0, 0, tokens(rows)}}};
        const auto expected =
            streams(rank, shape, Blocks::mlp, 1, rounds, dtype, {0, 1}, rank.alone());
        const auto got =
            streams(rank, shape, Blocks::mlp, 1, rounds, dtype, rank.shard(), rank.together());
        // Rounding errors of the norm, both GEMMs, the activation (of two rounded factors, which
        // counts twice), each rank's part, their sum and the stream.
        CHECK(difference(got, expected, dtype,
                         {.roundings = 2 * (5 + rank.shard().ranks),
                          .length = 2 * shape.hidden + shape.intermediate}) == "");
      }
    }
  });
}

constexpr Shape kLayerShapes[] = {
    {9, 3, 16, 72, 104, false, true},
    {6, 6, 8, 48, 161, true, false},
    {2, 1, 32, 64, 96, false, false},
    {6, 2, 16, 64, 96, false, true, true, kernels::Activation::gelu_tanh, /*result_norms=*/true}};

std::int64_t lengths_of(const Shape& shape) {
  return 4 * shape.hidden + shape.heads * shape.head_dim + kTokens + shape.intermediate;
}

TEST_CASE("decoder layers over ranks give the stream that whole ones give") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kLayerShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Rounds rounds = prompt_and_token();
        const auto expected =
            streams(rank, shape, Blocks::both, 2, rounds, dtype, {0, 1}, rank.alone());
        const auto got =
            streams(rank, shape, Blocks::both, 2, rounds, dtype, rank.shard(), rank.together());
        // Attention and MLP errors, counted as in the tests above, twice.
        const int ranks = rank.shard().ranks, norms = shape.result_norms ? 2 : 0;
        CHECK(difference(got, expected, dtype,
                         {.roundings = 2 * 2 * (8 + 5 + 2 * ranks + norms),
                          .length = 2 * lengths_of(shape)}) == "");
      }
    }
  });
}

// Implements deferred RMSNorms by their definition and forwards everything else to another Gemm.
class DeferringGemm final : public kernels::Gemm {
 public:
  explicit DeferringGemm(kernels::Gemm& gemm) : gemm_(gemm) {}

  int deferred = 0, taken_up = 0;

 private:
  kernels::GemmPlan make_plan(const kernels::GemmShape& shape) override {
    kernels::GemmShape plain = shape;
    plain.deferred = plain.defer_next = false;
    kernels::GemmPlan plan = gemm_.plan(plain);
    plan.defers_next = shape.defer_next && shape.outputs % kernels::kSquaresColumns == 0;
    if (shape.deferred) {
      plan.prologue = kernels::Prologue::deferred_rms_norm;
      plan.prologue_kernel = false;
    }
    return plan;
  }
  void enqueue(const kernels::GemmCall& call, Stream& stream) override {
    const bool takes_up = call.plan.prologue == kernels::Prologue::deferred_rms_norm;
    deferred += call.plan.defers_next ? 1 : 0;
    taken_up += takes_up ? 1 : 0;
    if (!call.plan.defers_next && !takes_up) return gemm_.run(call, stream);
    stream.synchronize();
    kernels::gemm_reference(call);
  }
  kernels::GroupedFusion fused_in(const kernels::GroupedGemm& /*grouped*/) override { return {}; }
  void enqueue_grouped(const kernels::GroupedGemm& grouped, Stream& stream) override {
    gemm_.run_grouped(grouped, stream);
  }
  void measure(std::span<const kernels::GemmCall>, Stream&) override {}

  kernels::Gemm& gemm_;
};

TEST_CASE("deferred norms between GEMMs are those that GEMMs apply whole") {
  on_groups([](LayerRank& rank) {
    if (rank.backend().kind() != DeviceKind::cpu) return;  // reference GEMMs read host memory
    const Shape& shape = kLayerShapes[2];
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Rounds rounds = prompt_and_token();
      const Context whole = rank.alone();
      DeferringGemm gemm(whole.gemm);
      const Context deferring{whole.stream, gemm, whole.scratch, nullptr};
      const auto expected = streams(rank, shape, Blocks::both, 2, rounds, dtype, {0, 1}, whole);
      const auto got = streams(rank, shape, Blocks::both, 2, rounds, dtype, {0, 1}, deferring);
      CHECK(difference(got, expected, dtype,
                       {.roundings = 2 * 2 * (8 + 5), .length = 2 * lengths_of(shape)}) == "");
      // Two passes, each deferring before both MLPs and before the second attention.
      CHECK(gemm.deferred == 2 * 3);
      CHECK(gemm.taken_up == 2 * 3);
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
