// DecoderLayer: two layers, one after the other, over ranks as on one.
#include <doctest/doctest.h>

#include <deque>

#include "layers/decoder_layer.h"
#include "layers/layer_rank.h"
#include "layers/rope_table.h"
#include "layers/test_batch.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t heads, kv_heads, head_dim, hidden, intermediate;
  bool bias, qk_norm;
};
constexpr Shape kShapes[] = {{9, 3, 16, 72, 104, false, true},
                             {6, 6, 8, 48, 161, true, false},
                             {2, 1, 32, 64, 96, false, false}};
constexpr std::int64_t kTokens = 32;

DecoderLayerConfig config_of(const Shape& shape) {
  DecoderLayerConfig config;
  config.attention = {.qkv = {"test.q", "test.k", "test.v"},
                      .output = "test.o",
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
                .down = "test.down",
                .hidden = shape.hidden,
                .intermediate = shape.intermediate,
                .bias = shape.bias};
  config.attention_norm = "test.attention_norm";
  config.mlp_norm = "test.mlp_norm";
  return config;
}

// The stream after a prompt has gone through both layers, then a token.
std::vector<float> streams(LayerRank& rank, const Shape& shape, DType dtype, Shard shard,
                           const Context& context) {
  std::deque<DecoderLayer> layers;
  for (const char* name : {"layers.0", "layers.1"}) {
    rank.bind(layers.emplace_back(name, config_of(shape), shard), dtype);
  }
  RmsNorm norm("norm", "test.norm", shape.hidden, 1e-6f);
  rank.bind(norm, dtype);
  const RopeTable rope(RopeConfig{}, shape.head_dim, kTokens, rank.backend());
  TestCache cache(rank.backend(), {.layers = 2,
                                   .tokens = kTokens,
                                   .kv_heads = layers[0].heads().kv.size(),
                                   .head_dim = shape.head_dim,
                                   .dtype = dtype});
  TestBatch batch(rank.backend(), cache, kTokens);
  std::vector<float> all;
  for (const TestBatch::Part& part :
       {TestBatch::Part{0, 0, std::vector<std::int32_t>(21)}, TestBatch::Part{0, 21, {0}}}) {
    batch.load({part}, TestBatch::Logits::none, rank.stream());
    const std::int64_t rows = batch.batch().rows();
    ResidualStream stream(rank.noise_tensor("sum", dtype, rows, shape.hidden),
                          rank.empty(dtype, rows, shape.hidden),
                          rank.empty(dtype, rows, shape.hidden), context);
    for (std::size_t n = 0; n < layers.size(); ++n) {
      layers[n].forward(stream, batch.batch(), cache.cache(), static_cast<std::int64_t>(n),
                        rope.cos_sin(), context);
    }
    const std::vector<float> values = rank.values(stream.sum(norm));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_CASE("decoder layers over ranks give the stream that whole ones give") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto expected = streams(rank, shape, dtype, {0, 1}, rank.alone());
        const auto got = streams(rank, shape, dtype, rank.shard(), rank.together());
        // Of attention and MLP (their tests count them), twice.
        const int ranks = rank.shard().ranks;
        const std::int64_t lengths =
            4 * shape.hidden + shape.heads * shape.head_dim + kTokens + shape.intermediate;
        CHECK(difference(got, expected, dtype,
                         {.roundings = 2 * 2 * (8 + 5 + 2 * ranks), .length = 2 * lengths}) == "");
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
