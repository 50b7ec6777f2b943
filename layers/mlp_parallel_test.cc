// GatedMlp: what all ranks together add to the residual stream is what one rank adds.
#include <doctest/doctest.h>

#include "layers/layer_rank.h"
#include "layers/mlp.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t rows, hidden, intermediate;
  bool bias;
  kernels::Activation activation;
};
constexpr Shape kShapes[] = {{5, 72, 104, false, kernels::Activation::silu},
                             {1, 64, 256, true, kernels::Activation::gelu},
                             {7, 40, 161, true, kernels::Activation::gelu_tanh},
                             {3, 24, 2, false, kernels::Activation::silu}};

std::vector<float> stream_after(LayerRank& rank, const Shape& shape, DType dtype, Shard shard,
                                const Context& context) {
  const MlpConfig config{"test.gate",        "test.up",  "test.down",     shape.hidden,
                         shape.intermediate, shape.bias, shape.activation};
  GatedMlp mlp("mlp", config, shard);
  RmsNorm norm("norm", "test.norm", shape.hidden, 1e-6f);
  rank.bind(mlp, dtype);
  rank.bind(norm, dtype);
  ResidualStream stream(rank.noise_tensor("residual", dtype, shape.rows, shape.hidden),
                        rank.empty(dtype, shape.rows, shape.hidden),
                        rank.empty(dtype, shape.rows, shape.hidden), context);
  mlp.forward(stream, norm, context);
  return rank.values(stream.sum(norm));
}

TEST_CASE("an MLP over ranks adds to the stream what the whole one adds") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto expected = stream_after(rank, shape, dtype, {0, 1}, rank.alone());
        const auto got = stream_after(rank, shape, dtype, rank.shard(), rank.together());
        // Of the norm, both products, the activation (a product of two rounded numbers, where an
        // error counts twice), each rank's part, their sum and the stream.
        CHECK(difference(got, expected, dtype,
                         {.roundings = 2 * (5 + rank.shard().ranks),
                          .length = 2 * shape.hidden + shape.intermediate}) == "");
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
