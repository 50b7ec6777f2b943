// MergedColumnParallelLinear: each rank has its gates, then what they let through.
#include <doctest/doctest.h>

#include "layers/layer_rank.h"
#include "layers/linear.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t rows, outputs, inputs;
  bool bias;
};
constexpr Shape kShapes[] = {
    {5, 192, 96, false}, {1, 104, 72, true}, {7, 161, 40, true}, {3, 2, 16, false}};

void halves_are_those_of_the_whole(LayerRank& rank, const Shape& shape, DType dtype) {
  const auto layer = [&](Shard shard) {
    return MergedColumnParallelLinear("gate_up", "test.gate", "test.up", shape.outputs,
                                      shape.inputs, shape.bias, shard);
  };
  MergedColumnParallelLinear whole = layer({0, 1}), split = layer(rank.shard());
  rank.bind(whole, dtype);
  rank.bind(split, dtype);
  const Range own = part_of(shape.outputs, rank.shard());
  REQUIRE(split.outputs() == 2 * own.size());

  const Input in{.x = rank.noise_tensor("x", dtype, shape.rows, shape.inputs)};
  const TensorView expected = rank.empty(dtype, shape.rows, 2 * shape.outputs);
  const TensorView got = rank.empty(dtype, shape.rows, 2 * own.size());
  whole.forward(expected, in, rank.alone());
  split.forward(got, in, rank.together());

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

TEST_CASE("a merged product is this rank's columns of both products") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        halves_are_those_of_the_whole(rank, shape, dtype);
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
