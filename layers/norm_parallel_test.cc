// ResidualStream: what products read is the norm of the sum over ranks, and rows may be chosen at any time.
#include <doctest/doctest.h>

#include "layers/layer_rank.h"
#include "layers/linear.h"
#include "layers/residual.h"

namespace nvllm::layers {
namespace {

constexpr std::int64_t kRows = 6, kInputs = 96;

// A product is added to a stream whose norm another product reads.
struct Chain {
  Chain(LayerRank& rank, std::int64_t hidden, DType dtype, Shard shard)
      : first("first", "test.first", hidden, kInputs, part_of(kInputs, shard), false, shard),
        norm("norm", "test.norm", hidden, 1e-6f),
        second("second", "test.second", 64, hidden, false, {0, 1}),
        stream_context(shard.ranks == 1 ? rank.alone() : rank.together()),
        stream(rank.noise_tensor("sum", dtype, kRows, hidden), rank.empty(dtype, kRows, hidden),
               rank.empty(dtype, kRows, hidden), stream_context) {
    rank.bind(first, dtype);
    rank.bind(norm, dtype);
    rank.bind(second, dtype);
    const Range own = part_of(kInputs, shard);
    std::vector<float> x;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = own.begin; i < own.end; ++i) {
        x.push_back(noise("x", row * kInputs + i, 1.7f));
      }
    }
    first.add_to(stream, {.x = rank.tensor(x, dtype, kRows, own.size())}, stream_context);
  }

  std::vector<float> read(LayerRank& rank, DType dtype) {
    const TensorView out = rank.empty(dtype, stream.rows(), 64);
    second.forward(out, stream.input(norm), stream_context);
    return rank.values(out);
  }

  RowParallelLinear first;
  RmsNorm norm;
  ColumnParallelLinear second;
  Context stream_context;
  ResidualStream stream;
};

// Roundings: each rank's part and their sum, the stream, the norm, the product; on one rank, fewer.
Tolerance tolerance_of(const LayerRank& rank, std::int64_t hidden) {
  return {.roundings = 2 * (rank.shard().ranks + 4), .length = kInputs + 2 * hidden};
}

TEST_CASE("what is read from a stream over ranks is the norm of the whole sum") {
  on_groups([](LayerRank& rank) {
    for (const std::int64_t hidden : {72, 128, 200}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Chain whole(rank, hidden, dtype, {0, 1}), split(rank, hidden, dtype, rank.shard());
        CHECK(difference(split.read(rank, dtype), whole.read(rank, dtype), dtype,
                         tolerance_of(rank, hidden)) == "");
      }
    }
  });
}

TEST_CASE("looking at the sum changes no bit of what is read later") {
  on_groups([](LayerRank& rank) {
    Chain looked(rank, 72, DType::bf16, rank.shard()), plain(rank, 72, DType::bf16, rank.shard());
    looked.stream.sum(looked.norm);
    CHECK(looked.read(rank, DType::bf16) == plain.read(rank, DType::bf16));
  });
}

TEST_CASE("chosen rows of a stream read as they do among the others") {
  on_groups([](LayerRank& rank) {
    const std::int64_t hidden = 72;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Chain whole(rank, hidden, dtype, {0, 1}), split(rank, hidden, dtype, rank.shard());
      const std::vector<std::int32_t> chosen = {4, 0, 5};
      split.stream.select(rank.ids(chosen), rank.empty(dtype, 3, hidden),
                          rank.empty(dtype, 3, hidden), rank.empty(dtype, 3, hidden));
      const std::vector<float> all = whole.read(rank, dtype);
      std::vector<float> expected;
      for (const std::int32_t row : chosen) {
        expected.insert(expected.end(), all.begin() + row * 64, all.begin() + (row + 1) * 64);
      }
      CHECK(difference(split.read(rank, dtype), expected, dtype, tolerance_of(rank, hidden)) == "");
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
