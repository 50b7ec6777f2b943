// ColumnParallelLinear: each rank has its columns of the whole product.
#include <doctest/doctest.h>

#include "layers/layer_rank.h"
#include "layers/linear.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t rows, outputs, inputs;
  bool bias;
};
// Even and uneven parts, and fewer outputs than ranks.
constexpr Shape kShapes[] = {
    {5, 256, 96, false}, {1, 192, 72, true}, {7, 777, 40, true}, {3, 2, 16, true}};

void columns_are_those_of_the_whole(LayerRank& rank, const Shape& shape, DType dtype) {
  ColumnParallelLinear whole("column", "test.proj", shape.outputs, shape.inputs, shape.bias,
                             {0, 1});
  ColumnParallelLinear split("column", "test.proj", shape.outputs, shape.inputs, shape.bias,
                             rank.shard());
  rank.bind(whole, dtype);
  rank.bind(split, dtype);
  const Range own = part_of(shape.outputs, rank.shard());
  REQUIRE(split.outputs() == own.size());

  const Input in{.x = rank.noise_tensor("x", dtype, shape.rows, shape.inputs)};
  const TensorView expected = rank.empty(dtype, shape.rows, shape.outputs);
  const TensorView got = rank.empty(dtype, shape.rows, own.size());
  whole.forward(expected, in, rank.alone());
  split.forward(got, in, rank.together());
  CHECK(difference(rank.values(got), rank.values(expected), shape.outputs, own, dtype,
                   {.roundings = 2, .length = shape.inputs}) == "");
}

TEST_CASE("a column-parallel product is the columns of the whole one") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        columns_are_those_of_the_whole(rank, shape, dtype);
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
