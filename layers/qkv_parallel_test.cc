// QkvParallelLinear: each rank has its query heads and the KV heads that they need.
#include <doctest/doctest.h>

#include "layers/layer_rank.h"
#include "layers/linear.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t heads, kv_heads, head_dim;
  bool bias;
};
constexpr Shape kShapes[] = {
    {9, 3, 16, false}, {6, 6, 8, true}, {6, 2, 8, true}, {2, 1, 32, true}, {8, 4, 24, false}};
constexpr std::int64_t kRows = 5, kInputs = 72;

QkvParallelLinear make_layer(const Shape& shape, Shard shard) {
  return QkvParallelLinear("qkv", {"test.q", "test.k", "test.v"}, shape.heads, shape.kv_heads,
                           shape.head_dim, kInputs, shape.bias, shard);
}

// Columns [range] of every row.
std::vector<float> columns_of(const std::vector<float>& values, std::int64_t columns, Range range) {
  std::vector<float> part;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const float* begin = values.data() + row * columns;
    part.insert(part.end(), begin + range.begin, begin + range.end);
  }
  return part;
}

void heads_are_those_of_the_whole(LayerRank& rank, const Shape& shape, DType dtype) {
  QkvParallelLinear whole = make_layer(shape, {0, 1}), split = make_layer(shape, rank.shard());
  rank.bind(whole, dtype);
  rank.bind(split, dtype);
  const HeadPart own = heads_of(shape.heads, shape.kv_heads, rank.shard());
  const std::int64_t columns = (own.q.size() + 2 * own.kv.size()) * shape.head_dim;
  REQUIRE(split.outputs() == columns);

  const Input in{.x = rank.noise_tensor("x", dtype, kRows, kInputs)};
  const TensorView expected = rank.empty(dtype, kRows, whole.outputs());
  const TensorView got = rank.empty(dtype, kRows, columns);
  whole.forward(expected, in, rank.alone());
  split.forward(got, in, rank.together());

  const std::vector<float> all = rank.values(expected), mine = rank.values(got);
  std::int64_t at = 0, whole_at = 0;
  const auto check_next = [&](Range heads, std::int64_t of) {
    const Range here{at, at + heads.size() * shape.head_dim};
    const Range there{whole_at + heads.begin * shape.head_dim,
                      whole_at + heads.end * shape.head_dim};
    CHECK(difference(columns_of(mine, columns, here), all, whole.outputs(), there, dtype,
                     {.roundings = 2, .length = kInputs}) == "");
    at = here.end;
    whole_at += of * shape.head_dim;
  };
  check_next(own.q, shape.heads);
  check_next(own.kv, shape.kv_heads);
  check_next(own.kv, shape.kv_heads);
}

TEST_CASE("a QKV product is this rank's heads of q, k and v") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        heads_are_those_of_the_whole(rank, shape, dtype);
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
