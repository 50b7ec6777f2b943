// SelfAttention: prompts, their continuation in pieces and single tokens, through a cache of this rank's
// heads, give the residual stream of the whole attention.
#include <doctest/doctest.h>

#include "layers/attention.h"
#include "layers/layer_rank.h"
#include "layers/rope_table.h"
#include "layers/test_batch.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t heads, kv_heads, head_dim;
  bool bias, qk_norm, paged;
};
constexpr Shape kShapes[] = {{9, 3, 16, false, true, true},
                             {6, 6, 8, true, false, true},
                             {6, 2, 16, true, false, false},
                             {2, 1, 32, false, true, true},
                             {8, 4, 24, false, false, true}};
constexpr std::int64_t kHidden = 72, kTokens = 40;

// Which tokens of which sequences come together.
std::vector<std::vector<TestBatch::Part>> rounds() {
  const auto tokens = [](std::size_t count) { return std::vector<std::int32_t>(count, 0); };
  return {{{0, 0, tokens(19)}, {1, 0, tokens(3)}},
          {{0, 19, tokens(1)}, {1, 3, tokens(17)}},
          {{0, 20, tokens(1)}, {1, 20, tokens(1)}}};
}

AttentionConfig config_of(const Shape& shape) {
  return {.qkv = {"test.q", "test.k", "test.v"},
          .output = "test.o",
          .q_norm = "test.q_norm",
          .k_norm = "test.k_norm",
          .hidden = kHidden,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .qkv_bias = shape.bias,
          .output_bias = shape.bias,
          .qk_norm = shape.qk_norm};
}

// The stream after each round, one behind the other.
std::vector<float> streams(LayerRank& rank, const Shape& shape, DType dtype, Shard shard,
                           const Context& context) {
  SelfAttention attention("attention", config_of(shape), shard);
  RmsNorm norm("norm", "test.norm", kHidden, 1e-6f);
  rank.bind(attention, dtype);
  rank.bind(norm, dtype);
  const RopeTable rope(RopeConfig{}, shape.head_dim, kTokens, rank.backend());
  TestCache cache(rank.backend(), {.sequences = 2,
                                   .tokens = kTokens,
                                   .kv_heads = attention.heads().kv.size(),
                                   .head_dim = shape.head_dim,
                                   .block_size = shape.paged ? 8 : 0,
                                   .dtype = dtype});
  TestBatch batch(rank.backend(), cache, kTokens);
  std::vector<float> all;
  std::size_t round = 0;
  for (const auto& parts : rounds()) {
    batch.load(parts, TestBatch::Logits::none, rank.stream());
    const std::int64_t rows = batch.batch().rows();
    ResidualStream stream(rank.noise_tensor(std::to_string(round++), dtype, rows, kHidden),
                          rank.empty(dtype, rows, kHidden), rank.empty(dtype, rows, kHidden),
                          context);
    attention.forward(stream, norm, batch.batch(), cache.cache(), 0, rope.cos_sin(), context);
    const std::vector<float> values = rank.values(stream.sum(norm));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_CASE("attention over ranks adds to the stream what the whole attention adds") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto expected = streams(rank, shape, dtype, {0, 1}, rank.alone());
        const auto got = streams(rank, shape, dtype, rank.shard(), rank.together());
        // Of the norm, the first product, the rotation, attention, each rank's part, their sum and
        // the stream; errors of q and k both act on the scores.
        CHECK(difference(got, expected, dtype,
                         {.roundings = 2 * (8 + rank.shard().ranks),
                          .length = 2 * kHidden + shape.heads * shape.head_dim + kTokens}) == "");
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
