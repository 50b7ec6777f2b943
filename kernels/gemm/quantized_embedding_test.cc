#include "kernels/gemm/quantized_embedding.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"

namespace nvllm::kernels {
namespace {

// A table of random weights, quantized, and the numbers that it stands for.
struct Table {
  QuantizedShape shape;
  std::vector<std::byte> values, scales;
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
      std::byte* const own_values = values.data() + entry * shape.row_bytes();
      std::byte* const own_scales = scales.data() + entry * scale_bytes;
      pack_row(shape, quantize_row(shape, row), own_values, own_scales);
      dequantize_row(shape, own_values, own_scales,
                     &numbers[static_cast<std::size_t>(entry * columns)]);
    }
  }

  QuantizedEmbedding call(TensorView out, std::vector<std::int32_t>& ids, std::int64_t first_id,
                          float scale = 1) {
    return {.out = out,
            .ids = {ids.data(), DType::i32, {static_cast<std::int64_t>(ids.size())}},
            .shape = shape,
            .values = {values.data(), DType::u8, {shape.outputs, shape.row_bytes()}},
            .scales = {scales.data(), shape.scale_type(), {shape.outputs, shape.scale_columns()}},
            .first_id = first_id,
            .scale = scale};
  }
};

TEST_CASE_TEMPLATE("an embedding from a quantized table gives its numbers, and zeros beyond it", T,
                   float, Bf16, F16) {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  for (const auto& [format, group] : {std::pair{WeightFormat::fp8, 128},
                                      {WeightFormat::int8, 16},
                                      {WeightFormat::int8, 32},
                                      {WeightFormat::int4, 32}}) {
    for (const std::int64_t columns : {64, 100, 576}) {
      Table table(format, group, 9, columns);
      std::vector<std::int32_t> ids = {100, 108, 104, 99, 109, 100, -1, 2147483647};
      std::vector<T> out(ids.size() * static_cast<std::size_t>(columns), from_float<T>(-7));
      const TensorView view(out.data(), dtype_of<T>,
                            {static_cast<std::int64_t>(ids.size()), columns});
      const float scale = columns == 100 ? 2.75f : 1.0f;
      quantized_embedding(table.call(view, ids, 100, scale), *stream);
      stream->synchronize();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::int64_t entry = ids[i / static_cast<std::size_t>(columns)] - 100;
        const auto column = static_cast<std::int64_t>(i) % columns;
        const bool inside = entry >= 0 && entry < 9;
        const T expected = from_float<T>(
            inside ? table.numbers[static_cast<std::size_t>(entry * columns + column)] * scale
                   : 0.0f);
        wrong += std::memcmp(&out[i], &expected, sizeof(T)) != 0;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("an embedding from a table of another shape is refused, by name") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  Table table(WeightFormat::int8, 32, 4, 64);
  std::vector<std::int32_t> ids = {1};
  std::vector<float> out(64);
  QuantizedEmbedding call = table.call({out.data(), DType::f32, {1, 63}}, ids, 0);
  CHECK_THROWS_WITH_AS(quantized_embedding(call, *stream),
                       "quantized_embedding: out is float32 [1, 63]; it must be float32 [1, 64]",
                       Error);
}

}  // namespace
}  // namespace nvllm::kernels
