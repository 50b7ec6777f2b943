// The parallel linear layers: column-parallel ones give each rank its columns of the whole result,
// merged ones those of both halves, QKV its query heads and the KV heads that these need; the
// row-parallel sum over ranks is the whole result, on every rank.
#include <doctest/doctest.h>

#include "layers/linear.h"
#include "layers/testing/layer_rank.h"

namespace nvllm::layers {
namespace {

struct LinearShape {
  std::int64_t rows, outputs, inputs;
  bool bias;
};
// --- ColumnParallelLinear ---

// Even and uneven parts, and fewer outputs than ranks.
constexpr LinearShape kColumnShapes[] = {
    {5, 256, 96, false}, {1, 192, 72, true}, {7, 777, 40, true}, {3, 2, 16, true}};

void columns_are_those_of_the_whole(LayerRank& rank, const LinearShape& shape, DType dtype) {
  ColumnParallelLinear whole("column", "test.proj", shape.outputs, shape.inputs, shape.bias,
                             {0, 1});
  ColumnParallelLinear split("column", "test.proj", shape.outputs, shape.inputs, shape.bias,
                             rank.shard());
  rank.bind(whole, dtype);
  rank.bind(split, dtype);
  const Range own = shard_range(shape.outputs, rank.shard());
  REQUIRE(split.outputs() == own.size());

  const TensorView x = rank.noise_tensor("x", dtype, shape.rows, shape.inputs);
  const TensorView expected = rank.empty(dtype, shape.rows, shape.outputs);
  const TensorView got = rank.empty(dtype, shape.rows, own.size());
  whole.forward(expected, x, rank.alone());
  split.forward(got, x, rank.together());
  CHECK(difference(rank.values(got), rank.values(expected), shape.outputs, own, dtype,
                   {.roundings = 2, .length = shape.inputs}) == "");
}

TEST_CASE("a column-parallel GEMM gives the columns of the whole one") {
  on_groups([](LayerRank& rank) {
    for (const LinearShape& shape : kColumnShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        columns_are_those_of_the_whole(rank, shape, dtype);
      }
    }
  });
}

// --- MergedColumnParallelLinear ---

constexpr LinearShape kMergedShapes[] = {
    {5, 192, 96, false}, {1, 104, 72, true}, {7, 161, 40, true}, {3, 2, 16, false}};

void halves_are_those_of_the_whole(LayerRank& rank, const LinearShape& shape, DType dtype) {
  const auto layer = [&](Shard shard) {
    return MergedColumnParallelLinear("gate_up", "test.gate", "test.up", shape.outputs,
                                      shape.inputs, shape.bias, shard);
  };
  MergedColumnParallelLinear whole = layer({0, 1}), split = layer(rank.shard());
  rank.bind(whole, dtype);
  rank.bind(split, dtype);
  const Range own = shard_range(shape.outputs, rank.shard());
  REQUIRE(split.outputs() == 2 * own.size());

  const TensorView x = rank.noise_tensor("x", dtype, shape.rows, shape.inputs);
  const TensorView expected = rank.empty(dtype, shape.rows, 2 * shape.outputs);
  const TensorView got = rank.empty(dtype, shape.rows, 2 * own.size());
  whole.forward(expected, x, rank.alone());
  split.forward(got, x, rank.together());

  const std::vector<float> all = rank.values(expected), mine = rank.values(got);
  for (const std::int64_t half : {0, 1}) {
    std::vector<float> part;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const float* begin = mine.data() + (2 * row + half) * own.size();
      part.insert(part.end(), begin, begin + own.size());
    }
    const Range of_whole{half * shape.outputs + own.begin, half * shape.outputs + own.end};
    CHECK(difference(part, all, 2 * shape.outputs, of_whole, dtype,
                     {.roundings = 2, .length = shape.inputs}) == "");
  }
}

TEST_CASE("a merged GEMM gives this rank's columns of both halves") {
  on_groups([](LayerRank& rank) {
    for (const LinearShape& shape : kMergedShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        halves_are_those_of_the_whole(rank, shape, dtype);
      }
    }
  });
}

// --- QkvParallelLinear ---

struct QkvShape {
  std::int64_t heads, kv_heads, head_dim;
  bool bias;
};
constexpr QkvShape kQkvShapes[] = {
    {9, 3, 16, false}, {6, 6, 8, true}, {6, 2, 8, true}, {2, 1, 32, true}, {8, 4, 24, false}};
constexpr std::int64_t kQkvRows = 5, kQkvInputs = 72;

QkvParallelLinear qkv_layer(const QkvShape& shape, Shard shard) {
  return QkvParallelLinear("qkv", {"test.q", "test.k", "test.v"}, shape.heads, shape.kv_heads,
                           shape.head_dim, kQkvInputs, shape.bias, shard);
}

// Columns [range] of every row.
std::vector<float> columns_of(const std::vector<float>& values, std::int64_t columns, Range range) {
  std::vector<float> part;
  for (std::int64_t row = 0; row < kQkvRows; ++row) {
    const float* begin = values.data() + row * columns;
    part.insert(part.end(), begin + range.begin, begin + range.end);
  }
  return part;
}

void heads_are_those_of_the_whole(LayerRank& rank, const QkvShape& shape, DType dtype) {
  QkvParallelLinear whole = qkv_layer(shape, {0, 1}), split = qkv_layer(shape, rank.shard());
  rank.bind(whole, dtype);
  rank.bind(split, dtype);
  const HeadShard own = heads_of(shape.heads, shape.kv_heads, rank.shard());
  const std::int64_t columns = (own.q.size() + 2 * own.kv.size()) * shape.head_dim;
  REQUIRE(split.outputs() == columns);

  const TensorView x = rank.noise_tensor("x", dtype, kQkvRows, kQkvInputs);
  const TensorView expected = rank.empty(dtype, kQkvRows, whole.outputs());
  const TensorView got = rank.empty(dtype, kQkvRows, columns);
  whole.forward(expected, x, rank.alone());
  split.forward(got, x, rank.together());

  const std::vector<float> all = rank.values(expected), mine = rank.values(got);
  std::int64_t at = 0, whole_at = 0;
  const auto check_next = [&](Range heads, std::int64_t of) {
    const Range here{at, at + heads.size() * shape.head_dim};
    const Range there{whole_at + heads.begin * shape.head_dim,
                      whole_at + heads.end * shape.head_dim};
    CHECK(difference(columns_of(mine, columns, here), all, whole.outputs(), there, dtype,
                     {.roundings = 2, .length = kQkvInputs}) == "");
    at = here.end;
    whole_at += of * shape.head_dim;
  };
  check_next(own.q, shape.heads);
  check_next(own.kv, shape.kv_heads);
  check_next(own.kv, shape.kv_heads);
}

TEST_CASE("a QKV GEMM gives this rank's heads of q, k and v") {
  on_groups([](LayerRank& rank) {
    for (const QkvShape& shape : kQkvShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        heads_are_those_of_the_whole(rank, shape, dtype);
      }
    }
  });
}

// --- RowParallelLinear ---

// Even and uneven parts; with two inputs some ranks have none.
constexpr LinearShape kRowShapes[] = {
    {5, 96, 256, false}, {1, 72, 192, true}, {7, 40, 777, true}, {3, 16, 2, true}};

// The same layer on this rank alone and split over all ranks, with its inputs.
struct RowLayers {
  RowLayers(LayerRank& rank, const LinearShape& shape, DType dtype)
      : own(shard_range(shape.inputs, rank.shard())),
        whole("row", "test.proj", shape.outputs, shape.inputs, {0, shape.inputs}, shape.bias,
              {0, 1}),
        split("row", "test.proj", shape.outputs, shape.inputs, own, shape.bias, rank.shard()) {
    rank.bind(whole, dtype);
    rank.bind(split, dtype);
    std::vector<float> all, mine;
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      for (std::int64_t column = 0; column < shape.inputs; ++column) {
        const float value = noise("x", row * shape.inputs + column, 1.7f);
        all.push_back(value);
        if (column >= own.begin && column < own.end) mine.push_back(value);
      }
    }
    x = rank.tensor(all, dtype, shape.rows, shape.inputs);
    own_x = rank.tensor(mine, dtype, shape.rows, own.size());
  }

  Range own;
  RowParallelLinear whole, split;
  TensorView x, own_x;
};

// Roundings: each rank's part, their sum, and the whole result.
Tolerance row_tolerance(const LayerRank& rank, const LinearShape& shape) {
  return {.roundings = rank.shard().ranks + 2, .length = shape.inputs};
}

void sum_is_the_whole(LayerRank& rank, const LinearShape& shape, DType dtype) {
  const RowLayers layers(rank, shape, dtype);
  const TensorView expected = rank.empty(dtype, shape.rows, shape.outputs);
  const TensorView got = rank.empty(dtype, shape.rows, shape.outputs);
  layers.whole.forward(expected, layers.x, rank.alone());
  layers.split.forward(got, layers.own_x, rank.together());
  CHECK(difference(rank.values(got), rank.values(expected), dtype, row_tolerance(rank, shape)) ==
        "");
}

TEST_CASE("a row-parallel GEMM gives the whole result on every rank") {
  on_groups([](LayerRank& rank) {
    for (const LinearShape& shape : kRowShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) sum_is_the_whole(rank, shape, dtype);
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
