// ResidualStream: GEMMs read the norm of the sum over ranks, each result is added exactly once, and
// rows may be selected at any time.
#include <doctest/doctest.h>

#include "layers/linear.h"
#include "layers/residual_stream.h"
#include "layers/testing/layer_rank.h"

namespace nvllm::layers {
namespace {

constexpr std::int64_t kRows = 6, kInputs = 96;

ResidualStream stream_of(LayerRank& rank, const std::string& sum, DType dtype, std::int64_t rows,
                         std::int64_t hidden) {
  return {.hidden = rank.noise_tensor(sum, dtype, rows, hidden),
          .normed = rank.empty(dtype, rows, hidden),
          .partial = rank.empty(dtype, rows, hidden)};
}

void add(ResidualStream& stream, const RowParallelLinear& layer, TensorView x,
         const Context& context, const RmsNorm* result_norm = nullptr) {
  const auto operands = add_operands(stream, x, {}, nullptr, context, result_norm);
  context.gemm.run(context.gemm.call(layer.weight(), operands), context.stream);
}

// Computes a layer that reads the stream through a norm.
void read(ResidualStream& stream, const RmsNorm& norm, const ColumnParallelLinear& layer,
          TensorView out, const Context& context) {
  kernels::GemmOperands operands = norm_operands(stream, norm, context);
  operands.out = out;
  const bool normed = operands.prologue.norm_weight.data == nullptr;
  const kernels::GemmFusion fusion{.prologue = normed ? kernels::Prologue::none
                                                      : kernels::Prologue::rms_norm};
  context.gemm.run(context.gemm.call(layer.weight(), operands, fusion), context.stream);
}

// One layer's result is added to a stream, which another layer reads through a norm.
struct Chain {
  Chain(LayerRank& rank, std::int64_t hidden, DType dtype, Shard shard, bool unfused_norms = false)
      : first("first", "test.first", hidden, kInputs, shard_range(kInputs, shard), false, shard),
        norm("norm", "test.norm", hidden, 1e-6f, unfused_norms ? 1.0f : 0.0f),
        result_norm("result_norm", "test.result_norm", hidden, 1e-6f, 0.5f),
        second("second", "test.second", 64, hidden, false, {0, 1}),
        context(shard.ranks == 1 ? rank.alone() : rank.together()),
        stream(stream_of(rank, "sum", dtype, kRows, hidden)) {
    rank.bind(first, dtype);
    rank.bind(norm, dtype);
    rank.bind(result_norm, dtype);
    rank.bind(second, dtype);
    stream.unfused_norms = unfused_norms;
    const Range own = shard_range(kInputs, shard);
    std::vector<float> x;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = own.begin; i < own.end; ++i) {
        x.push_back(noise("x", row * kInputs + i, 1.7f));
      }
    }
    add(stream, first, rank.tensor(x, dtype, kRows, own.size()), context,
        unfused_norms ? &result_norm : nullptr);
  }

  std::vector<float> values(LayerRank& rank, DType dtype) {
    const TensorView out = rank.empty(dtype, stream.rows(), 64);
    read(stream, norm, second, out, context);
    return rank.values(out);
  }

  RowParallelLinear first;
  RmsNorm norm, result_norm;
  ColumnParallelLinear second;
  Context context;
  ResidualStream stream;
};

// Roundings: each rank's part and their sum, the stream, the norm, the result; fewer on one rank.
// With unfused_norms also the norm of the result.
Tolerance tolerance_of(const LayerRank& rank, std::int64_t hidden, bool unfused_norms) {
  const int norms = unfused_norms ? 2 : 1;
  return {.roundings = 2 * (rank.shard().ranks + 3 + norms),
          .length = kInputs + (1 + norms) * hidden};
}

TEST_CASE("what is read from a stream over ranks is the norm of the whole sum") {
  on_groups([](LayerRank& rank) {
    for (const std::int64_t hidden : {72, 128, 200}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const bool apart = hidden != 128;
        Chain whole(rank, hidden, dtype, {0, 1}, apart);
        Chain split(rank, hidden, dtype, rank.shard(), apart);
        CHECK(difference(split.values(rank, dtype), whole.values(rank, dtype), dtype,
                         tolerance_of(rank, hidden, apart)) == "");
      }
    }
  });
}

TEST_CASE("looking at the sum changes no bit of what is read later") {
  on_groups([](LayerRank& rank) {
    Chain looked(rank, 72, DType::bf16, rank.shard()), plain(rank, 72, DType::bf16, rank.shard());
    complete_hidden(looked.stream, looked.norm, looked.context);
    CHECK(looked.values(rank, DType::bf16) == plain.values(rank, DType::bf16));
  });
}

TEST_CASE("a stream that alternates has the bits of one that is added to in place") {
  on_groups([](LayerRank& rank) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Chain in_place(rank, 72, dtype, {0, 1}), apart(rank, 72, dtype, {0, 1});
      const void* const sum = apart.stream.hidden.data;
      apart.stream.out_of_place = true;
      const TensorView x = rank.noise_tensor("more", dtype, kRows, kInputs);
      for (const int blocks : {1, 2}) {
        CAPTURE(blocks);
        add(in_place.stream, in_place.first, x, in_place.context);
        add(apart.stream, apart.first, x, apart.context);
        CHECK((apart.stream.hidden.data == sum) == (blocks == 2));
        CHECK(apart.values(rank, dtype) == in_place.values(rank, dtype));
      }
    }
  });
}

TEST_CASE("selected rows of a stream read as they do among the others") {
  on_groups([](LayerRank& rank) {
    const std::int64_t hidden = 72;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const bool apart = dtype == DType::f32;
      Chain whole(rank, hidden, dtype, {0, 1}, apart);
      Chain split(rank, hidden, dtype, rank.shard(), apart);
      const std::vector<std::int32_t> chosen = {4, 0, 5};
      const Scratch::Frame frame(split.context.scratch);
      select_rows(split.stream, rank.ids(chosen), split.context);
      const std::vector<float> all = whole.values(rank, dtype);
      std::vector<float> expected;
      for (const std::int32_t row : chosen) {
        expected.insert(expected.end(), all.begin() + row * 64, all.begin() + (row + 1) * 64);
      }
      CHECK(difference(split.values(rank, dtype), expected, dtype,
                       tolerance_of(rank, hidden, apart)) == "");
    }
  });
}

// --- Additions of row-parallel layers ---

struct StreamShape {
  std::int64_t rows, outputs, inputs;
  bool bias;
};
// Even and uneven parts; with two inputs some ranks have none.
constexpr StreamShape kStreamShapes[] = {
    {5, 96, 256, false}, {1, 72, 192, true}, {7, 40, 777, true}, {3, 16, 2, true}};

// The stream after adding a layer's result twice, of which this rank has a part.
std::vector<float> stream_after(LayerRank& rank, const StreamShape& shape, DType dtype, Shard shard,
                                const Context& context) {
  const Range own = shard_range(shape.inputs, shard);
  RowParallelLinear layer("row", "test.proj", shape.outputs, shape.inputs, own, shape.bias, shard);
  RmsNorm norm("norm", "test.norm", shape.outputs, 1e-6f);
  rank.bind(layer, dtype);
  rank.bind(norm, dtype);
  std::vector<float> values;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t column = own.begin; column < own.end; ++column) {
      values.push_back(noise("x", row * shape.inputs + column, 1.7f));
    }
  }
  const TensorView x = rank.tensor(values, dtype, shape.rows, own.size());
  ResidualStream stream = stream_of(rank, "residual", dtype, shape.rows, shape.outputs);
  add(stream, layer, x, context);
  norm_operands(stream, norm, context);  // a read in between
  add(stream, layer, x, context);
  return rank.values(complete_hidden(stream, norm, context));
}

TEST_CASE("the result of a row-parallel layer is added to the residual stream once") {
  on_groups([](LayerRank& rank) {
    for (const StreamShape& shape : kStreamShapes) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto expected = stream_after(rank, shape, dtype, {0, 1}, rank.alone());
        const auto got = stream_after(rank, shape, dtype, rank.shard(), rank.together());
        // Two times: each rank's part, their sum, the whole result and the stream.
        const Tolerance tolerance{.roundings = 2 * (rank.shard().ranks + 3),
                                  .length = 2 * shape.inputs};
        CHECK(difference(got, expected, dtype, tolerance) == "");
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::layers
