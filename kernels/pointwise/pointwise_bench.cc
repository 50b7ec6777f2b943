// The operations of this folder, in bytes read and written per second. Each registers its cases
// when the program starts.
#include "kernels/pointwise/copy.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/pointwise/random_fill.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/step_input.h"
#include "kernels/testing/bench.h"

namespace nvllm::kernels {
namespace {

using testing::GraphBenchmark;
using Ints = std::vector<std::int32_t>;

// RMSNorm in bytes per second: everything read plus everything written, weights aside.

struct Shape {
  std::int64_t rows, columns;
};

void measure_rmsnorm(GraphBenchmark& bench, Shape shape, DType dtype, bool residual) {
  RmsNorm args;
  args.out = bench.tensor(dtype, {shape.rows, shape.columns});
  args.x = bench.tensor(dtype, {shape.rows, shape.columns});
  // Zeros stay zeros, however often added.
  if (residual) args.residual = bench.tensor(dtype, {shape.rows, shape.columns});
  args.weight = bench.tensor(dtype, {shape.columns});
  bench.run(args.x.bytes() * (residual ? 4 : 2), [&] { rms_norm(args, bench.stream()); });
}

const bool rmsnorm_registered = [] {
  constexpr Shape kShapes[] = {
      {1, 4096}, {400, 800}, {4000, 8000}, {8 * 4000, 8000}, {16384, 4096}};
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const Shape shape : kShapes) {
        for (const bool residual : {false, true}) {
          const std::string what = std::to_string(shape.rows) + "x" +
                                   std::to_string(shape.columns) + (residual ? "/residual" : "");
          testing::register_benchmark("rms_norm", kind, dtype, what, [=](GraphBenchmark& bench) {
            measure_rmsnorm(bench, shape, dtype, residual);
          });
        }
      }
    }
  }
  return true;
}();

// Norms, rotation and store in bytes per second: q, k and v read, q written, k and v written to the
// cache; weights, cosines and sines aside. 32 and 8 heads of 128: Qwen3-4B and 8B; "plain": without
// norms.

void measure_norm_rope_store(GraphBenchmark& bench, std::int64_t rows, DType dtype, bool norm) {
  constexpr std::int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
  constexpr std::int64_t kPositions = 40'960, kBlockSize = 256;
  const std::int64_t blocks = (rows + kBlockSize - 1) / kBlockSize;
  // Sequences of 1024 tokens; blocks in no order.
  std::vector<std::int32_t> positions(rows);
  std::vector<std::int64_t> slots(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t block = row / kBlockSize * 37 % blocks;
    positions[row] = static_cast<std::int32_t>(row % 1024);
    slots[row] = block * kBlockSize + row % kBlockSize;
  }
  NormRopeStore args;
  args.qkv = bench.tensor(dtype, {rows, (kHeads + 2 * kKvHeads) * kHeadDim});
  if (norm) {
    args.q_norm = bench.tensor(dtype, {kHeadDim});
    args.k_norm = bench.tensor(dtype, {kHeadDim});
  }
  args.cos_sin = bench.tensor(DType::f32, {kPositions, kHeadDim});
  args.positions = bench.tensor(positions);
  args.slot_mapping = bench.tensor(slots);
  args.kv.keys = bench.tensor(dtype, {blocks, kBlockSize, kKvHeads, kHeadDim});
  args.kv.values = bench.tensor(dtype, {blocks, kBlockSize, kKvHeads, kHeadDim});
  args.heads = kHeads;
  bench.run(2 * args.qkv.bytes(), [&] { norm_rope_store(args, bench.stream()); });
}

const bool norm_rope_store_registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const std::int64_t rows : {1, 64, 16384}) {
        for (const bool norm : {true, false}) {
          const std::string what = std::to_string(rows) + "x32+8x128" + (norm ? "" : "/plain");
          testing::register_benchmark(
              "norm_rope_store", kind, dtype, what,
              [=](GraphBenchmark& bench) { measure_norm_rope_store(bench, rows, dtype, norm); });
        }
      }
    }
  }
  return true;
}();

// Gated activations in bytes per second: everything read plus everything written. Shapes are those
// of the result; a row of the input is twice as long.

struct Case {
  Activation activation;
  DType dtype;
  std::int64_t rows, n;
};

void measure_gated_activation(GraphBenchmark& bench, const Case& c) {
  GatedActivation args;
  args.out = bench.tensor(c.dtype, {c.rows, c.n});
  args.x = bench.tensor(c.dtype, {c.rows, 2 * c.n});
  args.activation = c.activation;
  bench.run(3 * args.out.bytes(), [&] { gated_activation(args, bench.stream()); });
}

const bool gated_activation_registered = [] {
  using enum Activation;
  constexpr Case kCases[] = {
      {silu, DType::bf16, 1, 12288},        {silu, DType::f32, 1, 12288},
      {silu, DType::bf16, 400, 800},        {silu, DType::f32, 400, 800},
      {silu, DType::bf16, 4000, 8000},      {silu, DType::f32, 4000, 8000},
      {silu, DType::bf16, 8 * 4000, 8000},  {silu, DType::f32, 8 * 4000, 8000},
      {silu, DType::bf16, 16384, 12288},    {silu, DType::f16, 16384, 12288},
      {gelu, DType::bf16, 4000, 8000},      {gelu, DType::f32, 4000, 8000},
      {gelu_tanh, DType::bf16, 4000, 8000}, {gelu_tanh, DType::f32, 4000, 8000},
  };
  for (const DeviceKind kind : testing::kBackends) {
    for (const Case& c : kCases) {
      const std::string what = std::to_string(c.rows) + "x" + std::to_string(c.n);
      testing::register_benchmark(
          name_of(c.activation), kind, c.dtype, what,
          [c](GraphBenchmark& bench) { measure_gated_activation(bench, c); });
    }
  }
  return true;
}();

// Step input of decode steps, and of prompts of 8,192 tokens in all.

void measure_step_input(GraphBenchmark& bench, std::int64_t sequences, std::int32_t rows) {
  constexpr std::int64_t kTableBlocks = 2560, kBlockSize = 16;
  constexpr std::int32_t kPosition = 1024;
  const auto spaced = [&](std::int64_t count, std::int32_t step) {
    Ints values(count);
    for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(i) * step;
    return values;
  };
  StepInput args;
  args.slots = bench.tensor(spaced(sequences, 1));
  args.query_start = bench.tensor(spaced(sequences + 1, rows));
  args.first_position = bench.tensor(Ints(sequences, rows == 1 ? kPosition : 0));
  args.first_token = bench.tensor(rows == 1 ? Ints(sequences, -1) : spaced(sequences, rows));
  const auto blocks = static_cast<std::int32_t>((rows + kBlockSize - 1) / kBlockSize);
  args.first_block = bench.tensor(Ints(sequences, rows == 1 ? kPosition / kBlockSize : 0));
  args.block_start = bench.tensor(spaced(sequences + 1, blocks));
  args.new_tokens = bench.tensor(spaced(sequences * rows, 1));
  args.new_blocks = bench.tensor(spaced(sequences * blocks, 1));
  args.max_query_rows = rows;
  args.last_tokens = bench.tensor(Ints(sequences, 5));
  args.table = bench.tensor(DType::i32, {sequences, kTableBlocks});
  args.history = bench.tensor(DType::i32, {sequences * blocks, kBlockSize});
  args.tokens = bench.tensor(DType::i32, {sequences * rows});
  args.positions = bench.tensor(DType::i32, {sequences * rows});
  args.slot_mapping = bench.tensor(DType::i64, {sequences * rows});
  args.kv_length = bench.tensor(DType::i32, {sequences});
  args.block_table = bench.tensor(DType::i32, {sequences, kTableBlocks});
  const std::size_t gathered = sequences * (rows == 1 ? kPosition / kBlockSize : blocks);
  bench.run(sequences * rows * 20 + gathered * 8, [&] { step_input(args, bench.stream()); });
}

const bool step_input_registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const auto& [sequences, rows] : {std::pair{1, 1}, {256, 1}, {1, 8192}, {8, 1024}}) {
      testing::register_benchmark("step_input", kind, DType::i32,
                                  std::to_string(sequences) + "x" + std::to_string(rows),
                                  [sequences = sequences, rows = rows](GraphBenchmark& bench) {
                                    measure_step_input(bench, sequences, rows);
                                  });
    }
  }
  return true;
}();

// Embedding in bytes per second: rows read and written. The rows lie apart in a table of 151,936.

void measure_embedding(GraphBenchmark& bench, std::int64_t rows, std::int64_t columns,
                       DType dtype) {
  constexpr std::int64_t kEntries = 151'936;
  std::vector<std::int32_t> ids(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    ids[row] = static_cast<std::int32_t>((row + 1) * 7'919 % kEntries);
  }
  Embedding args;
  args.out = bench.tensor(dtype, {rows, columns});
  args.ids = bench.tensor(ids);
  args.table = bench.tensor(dtype, {kEntries, columns});
  bench.run(2 * args.out.bytes(), [&] { embedding(args, bench.stream()); });
}

const bool embedding_registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t rows : {1, 256, 16384}) {
      testing::register_benchmark(
          "embedding", kind, DType::bf16, std::to_string(rows) + "x4096",
          [=](GraphBenchmark& bench) { measure_embedding(bench, rows, 4096, DType::bf16); });
    }
  }
  return true;
}();

// The newest tokens of decode steps, of 8 heads of 128 elements.

void measure_copy_last_kv(GraphBenchmark& bench, std::int64_t sequences) {
  constexpr std::int64_t kBlockSize = 64, kHeads = 8, kDim = 128;
  const auto cache = [&] {
    KvView kv;
    kv.keys = bench.tensor(DType::bf16, {sequences, kBlockSize, kHeads, kDim});
    kv.values = bench.tensor(DType::bf16, {sequences, kBlockSize, kHeads, kDim});
    return kv;
  };
  CopyLastKv args;
  args.to = cache();
  args.from = cache();
  args.kv_length = bench.tensor(std::vector<std::int32_t>(static_cast<std::size_t>(sequences), 40));
  bench.run(static_cast<std::size_t>(sequences * kHeads * kDim) * 2 * 2 * 2,
            [&] { copy_last_kv(args, bench.stream()); });
}

const bool copy_last_kv_registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const std::int64_t sequences : {1, 8, 64}) {
      testing::register_benchmark(
          "copy_last_kv", kind, DType::bf16, std::to_string(sequences),
          [sequences](GraphBenchmark& bench) { measure_copy_last_kv(bench, sequences); });
    }
  }
  return true;
}();

// Random values in bytes written per second. The limit is a copy's, which reads half of its bytes.

void measure_random_fill(GraphBenchmark& bench, std::int64_t rows, std::int64_t columns,
                         DType dtype) {
  RandomFill args;
  args.out = bench.tensor(dtype, {rows, columns});
  args.whole_columns = columns;
  bench.run(args.out.bytes(), [&] { random_fill(args, bench.stream()); });
}

const bool random_fill_registered = [] {
  for (const DeviceKind kind : testing::kBackends) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      testing::register_benchmark(
          "random_fill", kind, dtype, "24576x4096",
          [=](GraphBenchmark& bench) { measure_random_fill(bench, 24576, 4096, dtype); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace nvllm::kernels
