// DecoderLayer: two layers, one after the other, over ranks as on one.
#include <doctest/doctest.h>

#include <deque>
#include <span>

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
    ResidualStream stream(
        rank.noise_tensor("sum", dtype, rows, shape.hidden), rank.empty(dtype, rows, shape.hidden),
        rank.empty(dtype, rows, shape.hidden), context,
        rank.empty(DType::f32, shape.hidden / kernels::kSquaresColumns, kernels::kSquaresRows));
    layers[0].attend(stream, batch.batch(), cache.cache(), 0, rope.cos_sin(), context);
    layers[0].transform(stream, &layers[1], context);
    layers[1].forward(stream, batch.batch(), cache.cache(), 1, rope.cos_sin(), context);
    const std::vector<float> values = rank.values(stream.sum(norm));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Begins and ends norms in products, by their definition; all else is another's.
class HalvingMatmul final : public kernels::Matmul {
 public:
  explicit HalvingMatmul(kernels::Matmul& matmul) : matmul_(matmul) {}

  void linear(const kernels::Linear& args, Stream& stream) override {
    const bool begins = args.begins.squares.data != nullptr;
    const bool ends = args.begun.squares.data != nullptr;
    begun += begins ? 1 : 0;
    ended += ends ? 1 : 0;
    if (!begins && !ends) return matmul_.linear(args, stream);
    stream.synchronize();
    kernels::linear_reference(args);
  }
  bool begins_norm(const kernels::Linear& args) override {
    return args.out.shape[1] % kernels::kSquaresColumns == 0;
  }
  void tune(std::span<const kernels::Linear>, Stream&) override {}

  int begun = 0, ended = 0;

 private:
  kernels::Matmul& matmul_;
};

TEST_CASE("norms in halves between products are those that products take whole") {
  on_groups([](LayerRank& rank) {
    if (rank.backend().kind() != DeviceKind::cpu) return;  // references are the host's
    const Shape& shape = kShapes[2];
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Context whole = rank.alone();
      HalvingMatmul matmul(whole.matmul);
      const Context halves{whole.stream, matmul, whole.scratch, nullptr};
      const auto expected = streams(rank, shape, dtype, {0, 1}, whole);
      const auto got = streams(rank, shape, dtype, {0, 1}, halves);
      const std::int64_t lengths =
          4 * shape.hidden + shape.heads * shape.head_dim + kTokens + shape.intermediate;
      CHECK(difference(got, expected, dtype,
                       {.roundings = 2 * 2 * (8 + 5), .length = 2 * lengths}) == "");
      // Of two passes: before both MLPs and before the second attention.
      CHECK(matmul.begun == 2 * 3);
      CHECK(matmul.ended == 2 * 3);
    }
  });
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
