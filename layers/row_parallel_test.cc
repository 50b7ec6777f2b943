// RowParallelLinear: the sum over ranks is the whole product, on every rank.
#include <doctest/doctest.h>

#include "layers/layer_rank.h"
#include "layers/linear.h"
#include "layers/residual.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t rows, outputs, inputs;
  bool bias;
};
// Even and uneven parts; with two inputs some ranks have none.
constexpr Shape kShapes[] = {
    {5, 96, 256, false}, {1, 72, 192, true}, {7, 40, 777, true}, {3, 16, 2, true}};

// A product of each rank's inputs; its layer on this rank alone and on all.
struct Layers {
  Layers(LayerRank& rank, const Shape& shape, DType dtype)
      : own(part_of(shape.inputs, rank.shard())),
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

// Each rank's part is rounded, their sum, and the whole product.
Tolerance tolerance_of(const LayerRank& rank, const Shape& shape) {
  return {.roundings = rank.shard().ranks + 2, .length = shape.inputs};
}

void sum_is_the_whole(LayerRank& rank, const Shape& shape, DType dtype) {
  const Layers layers(rank, shape, dtype);
  const TensorView expected = rank.empty(dtype, shape.rows, shape.outputs);
  const TensorView got = rank.empty(dtype, shape.rows, shape.outputs);
  layers.whole.forward(expected, {.x = layers.x}, rank.alone());
  layers.split.forward(got, {.x = layers.own_x}, rank.together());
  CHECK(difference(rank.values(got), rank.values(expected), dtype, tolerance_of(rank, shape)) ==
        "");
}

TEST_CASE("a row-parallel product is the whole one on every rank") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) sum_is_the_whole(rank, shape, dtype);
    }
  });
}

// The stream after two products were added.
std::vector<float> stream_after(LayerRank& rank, const RowParallelLinear& layer, TensorView x,
                                const RmsNorm& norm, const Shape& shape, DType dtype,
                                const Context& context) {
  ResidualStream stream(rank.noise_tensor("residual", dtype, shape.rows, shape.outputs),
                        rank.empty(dtype, shape.rows, shape.outputs),
                        rank.empty(dtype, shape.rows, shape.outputs), context);
  layer.add_to(stream, {.x = x}, context);
  stream.input(norm);
  layer.add_to(stream, {.x = x}, context);
  return rank.values(stream.sum(norm));
}

TEST_CASE("a row-parallel product is added to the residual stream once") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Layers layers(rank, shape, dtype);
        RmsNorm norm("norm", "test.norm", shape.outputs, 1e-6f);
        rank.bind(norm, dtype);
        const auto expected =
            stream_after(rank, layers.whole, layers.x, norm, shape, dtype, rank.alone());
        const auto got =
            stream_after(rank, layers.split, layers.own_x, norm, shape, dtype, rank.together());
        Tolerance tolerance = tolerance_of(rank, shape);
        tolerance.roundings = 2 * (tolerance.roundings + 1);
        tolerance.length *= 2;
        CHECK(difference(got, expected, dtype, tolerance) == "");
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
