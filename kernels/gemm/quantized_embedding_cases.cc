// Embedding lookup in quantized tables against their dequantized numbers, on whichever backend is
// linked: the bits are the same.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/gemm/quantized_embedding.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;

// A table of random weights, quantized, and the numbers that it stands for.
struct Table {
  QuantizedShape shape;
  std::vector<std::uint8_t> values, scales;
  std::vector<float> numbers;  // [entries, columns]

  Table(WeightFormat format, std::int64_t group, std::int64_t entries, std::int64_t columns)
      : shape{format, entries, columns, group},
        values(shape.value_bytes()),
        scales(shape.scale_bytes()),
        numbers(static_cast<std::size_t>(entries * columns)) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 0.05f);
    std::vector<float> row(static_cast<std::size_t>(columns));
    const std::int64_t scale_bytes = static_cast<std::int64_t>(scales.size()) / entries;
    for (std::int64_t entry = 0; entry < entries; ++entry) {
      for (float& weight : row) weight = normal(random);
      QuantizedRow quantized = quantize_row(shape, row);
      for (float& offset : quantized.offsets) offset = normal(random);
      auto* const own_values =
          reinterpret_cast<std::byte*>(values.data()) + entry * shape.row_bytes();
      auto* const own_scales = reinterpret_cast<std::byte*>(scales.data()) + entry * scale_bytes;
      pack_row(shape, quantized, own_values, own_scales);
      dequantize_row(shape, own_values, own_scales,
                     &numbers[static_cast<std::size_t>(entry * columns)]);
    }
  }

  float number(std::int64_t entry, std::int64_t column) const {
    return numbers[static_cast<std::size_t>(entry * shape.inputs + column)];
  }
};

// A table in a backend's memory.
struct PlacedTable {
  const Table& table;
  Placed<std::uint8_t> values, scales;

  PlacedTable(Backend& backend, Stream& stream, const Table& table)
      : table(table),
        values(backend, stream, table.values),
        scales(backend, stream, table.scales) {}

  QuantizedEmbedding call(TensorView out, TensorView ids, std::int64_t first_id,
                          float scale = 1) const {
    const QuantizedShape& shape = table.shape;
    return {.out = out,
            .ids = ids,
            .shape = shape,
            .values = {values.data(), DType::u8, {shape.outputs, shape.row_bytes()}},
            .scales = {scales.data(), shape.scale_type(), {shape.outputs, shape.scale_columns()}},
            .first_id = first_id,
            .scale = scale};
  }
};

TEST_CASE_TEMPLATE("an embedding from a quantized table gives its numbers, and zeros beyond it", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  for (const auto& packing : {std::pair{WeightFormat::fp8, 128},
                              {WeightFormat::int8, 16},
                              {WeightFormat::int8, 32},
                              {WeightFormat::int8, 128},
                              {WeightFormat::int4, 32},
                              {WeightFormat::int4, 128}}) {
    const WeightFormat format = packing.first;
    const std::int64_t group = packing.second;
    for (const std::int64_t columns : {64, 100, 576}) {
      const Table table(format, group, 9, columns);
      const PlacedTable placed(*backend, *stream, table);
      const std::vector<std::int32_t> ids = {100, 108, 104, 99, 109, 100, -1, 2147483647};
      const auto rows = static_cast<std::int64_t>(ids.size());
      const Placed<std::int32_t> placed_ids(*backend, *stream, ids);
      Placed<T> out(*backend, *stream,
                    std::vector<T>(static_cast<std::size_t>(rows * columns), from_float<T>(-7)));
      const float scale = columns == 100 ? 2.75f : 1.0f;
      quantized_embedding(
          placed.call(out.view({rows, columns}), placed_ids.view({rows}), 100, scale), *stream);
      const std::vector<T> results = out.fetch();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < results.size(); ++i) {
        const std::int64_t entry = ids[i / static_cast<std::size_t>(columns)] - std::int64_t{100};
        const auto column = static_cast<std::int64_t>(i) % columns;
        const bool inside = entry >= 0 && entry < 9;
        const T expected = from_float<T>(inside ? table.number(entry, column) * scale : 0.0f);
        wrong += std::memcmp(&results[i], &expected, sizeof(T)) != 0;
      }
      CAPTURE(name_of(format));
      CAPTURE(group);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("an embedding of no rows from a quantized table does nothing") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Table table(WeightFormat::int8, 32, 4, 64);
  const PlacedTable placed(*backend, *stream, table);
  const Placed<std::int32_t> ids(*backend, *stream, {});
  Placed<float> out(*backend, *stream, {});
  quantized_embedding(placed.call(out.view({0, 64}), ids.view({0}), 0), *stream);
  CHECK(out.fetch().empty());
}

TEST_CASE("an embedding from a table of another shape is refused, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Table table(WeightFormat::int8, 32, 4, 64);
  const PlacedTable placed(*backend, *stream, table);
  const Placed<std::int32_t> ids(*backend, *stream, {1});
  const Placed<float> out(*backend, *stream, std::vector<float>(64));
  stream->synchronize();  // nobody else waits for the copies
  const QuantizedEmbedding call = placed.call(out.view({1, 63}), ids.view({1}), 0);
  CHECK_THROWS_WITH_AS(quantized_embedding(call, *stream),
                       "quantized_embedding: out is float32 [1, 63]; it must be float32 [1, 64]",
                       Error);
}

}  // namespace
}  // namespace nvllm::kernels
