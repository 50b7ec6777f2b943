// VocabParallelEmbedding: every rank gets the whole rows, bit-exactly. LmHead: each rank's logits
// are its part of the vocabulary's logits, and together they are complete.
#include <doctest/doctest.h>

#include <optional>

#include "layers/embedding.h"
#include "layers/testing/layer_rank.h"

namespace nvllm::layers {
namespace {

struct EmbeddingShape {
  std::int64_t vocabulary, columns;
};
constexpr EmbeddingShape kShapes[] = {{49152, 16}, {777, 40}, {515, 24}, {3, 8}};

// Both ends of the vocabulary and of every rank's part, and some ids in between.
std::vector<std::int32_t> interesting_ids(std::int64_t vocabulary, int ranks) {
  std::vector<std::int32_t> ids;
  for (int rank = 0; rank < ranks; ++rank) {
    const Range part = shard_range(vocabulary, {rank, ranks});
    if (part.size() == 0) continue;
    for (const std::int64_t id : {part.begin, part.begin + part.size() / 3, part.end - 1}) {
      ids.push_back(static_cast<std::int32_t>(id));
    }
  }
  return ids;
}

TEST_CASE("a vocab-parallel embedding gives the bits of the whole one on every rank") {
  on_groups([](LayerRank& rank) {
    for (const EmbeddingShape& shape : kShapes) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const auto layer = [&](Shard shard) {
          return VocabParallelEmbedding("embedding", "test.embed", shape.vocabulary, shape.columns,
                                        shard, /*scale=*/shape.columns == 72 ? 8.5f : 1.0f);
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

struct HeadShape {
  std::int64_t rows, vocabulary, columns;
  bool tied;
};
constexpr HeadShape kHeadShapes[] = {
    {1, 49152, 16, true}, {3, 777, 72, false}, {4, 777, 40, true}, {2, 515, 72, false}};

// An LM head, tied to an embedding or not.
struct Head {
  Head(LayerRank& rank, const HeadShape& shape, DType dtype, Shard shard)
      : embedding("embedding", "test.embed", shape.vocabulary, shape.columns, shard) {
    if (shape.tied) {
      head.emplace(embedding);
    } else {
      head.emplace("head", "test.head", shape.vocabulary, shape.columns, shard);
    }
    std::vector<Parameter*> parameters;
    embedding.declare(parameters);
    head->declare(parameters);
    REQUIRE(parameters.size() == (shape.tied ? 1 : 2));  // tied: one parameter, one buffer
    rank.bind_all(parameters, dtype);
    stride = head->stride();
    memory = rank.empty(DType::f32, shape.rows, stride);
    logits = memory;
    logits.shape[1] = head->vocabulary().size();
  }

  void forward(TensorView x, const Context& context) const {
    head->call(logits, {.out = {}, .x = x}, context).run(context.gemm, context.stream);
  }

  VocabParallelEmbedding embedding;
  std::optional<LmHead> head;
  std::int64_t stride;
  TensorView memory, logits;
};

void logits_are_those_of_the_whole(LayerRank& rank, const HeadShape& shape, DType dtype) {
  const Head whole(rank, shape, dtype, {0, 1});
  const Head split(rank, shape, dtype, rank.shard());
  const TensorView x = rank.noise_tensor("x", dtype, shape.rows, shape.columns);
  whole.forward(x, rank.alone());
  split.forward(x, rank.together());

  const std::vector<float> expected = rank.values(whole.logits);
  // Logits are float32 for all weight types.
  const Tolerance tolerance{.roundings = 2, .length = shape.columns};
  CHECK(difference(rank.values(split.logits), expected, shape.vocabulary, split.head->vocabulary(),
                   DType::f32, tolerance) == "");

  const int ranks = rank.shard().ranks;
  const TensorView all = rank.empty(DType::f32, ranks * shape.rows, split.stride);
  split.head->gather(all, split.logits, rank.together());
  for (int from = 0; from < ranks; ++from) {
    const Range part = shard_range(shape.vocabulary, {from, ranks});
    TensorView theirs = all;
    theirs.data = all.as<float>() + from * shape.rows * split.stride;
    theirs.shape = {shape.rows, part.size()};
    CHECK(difference(rank.values(theirs), expected, shape.vocabulary, part, DType::f32,
                     tolerance) == "");
  }
}

TEST_CASE("a vocab-parallel head gives its part of the logits, and all when gathered") {
  on_groups([](LayerRank& rank) {
    for (const HeadShape& shape : kHeadShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        logits_are_those_of_the_whole(rank, shape, dtype);
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
