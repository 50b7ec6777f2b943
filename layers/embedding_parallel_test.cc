// VocabParallelEmbedding: every rank gets the whole rows, to the bit.
#include <doctest/doctest.h>

#include "layers/embedding.h"
#include "layers/layer_rank.h"

namespace nvllm::layers {
namespace {

struct Shape {
  std::int64_t vocabulary, columns;
};
constexpr Shape kShapes[] = {{49152, 16}, {777, 40}, {515, 24}, {3, 8}};

// Both ends of the vocabulary and of every rank's part, and some between.
std::vector<std::int32_t> interesting_ids(std::int64_t vocabulary, int ranks) {
  std::vector<std::int32_t> ids;
  for (int rank = 0; rank < ranks; ++rank) {
    const Range part = part_of(vocabulary, {rank, ranks});
    if (part.size() == 0) continue;
    for (const std::int64_t id : {part.begin, part.begin + part.size() / 3, part.end - 1}) {
      ids.push_back(static_cast<std::int32_t>(id));
    }
  }
  return ids;
}

TEST_CASE("a vocab-parallel embedding gives the bits of the whole one on every rank") {
  on_groups([](LayerRank& rank) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const auto layer = [&](Shard shard) {
          return VocabParallelEmbedding("embedding", "test.embed", shape.vocabulary, shape.columns,
                                        shard);
        };
        VocabParallelEmbedding whole = layer({0, 1}), split = layer(rank.shard());
        rank.bind(whole, dtype);
        rank.bind(split, dtype);
        const auto ids = interesting_ids(shape.vocabulary, rank.shard().ranks);
        const auto rows = static_cast<std::int64_t>(ids.size());
        const TensorView expected = rank.empty(dtype, rows, shape.columns);
        const TensorView got = rank.empty(dtype, rows, shape.columns);
        whole.forward(expected, rank.ids(ids), rank.alone());
        split.forward(got, rank.ids(ids), rank.together());
        CHECK(rank.values(got) == rank.values(expected));
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
