// Embedding against its plain definition, on whichever backend is linked.
#include "kernels/pointwise/step_input.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;
using testing::same_bits;

template <typename T>
void check_against_reference(Backend& backend, std::int64_t rows, std::int64_t columns,
                             std::int64_t entries, std::int64_t first_id, std::int64_t shift) {
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(entries);
  CAPTURE(first_id);
  CAPTURE(shift);
  std::mt19937 random(static_cast<unsigned>(rows * columns));
  std::vector<std::int32_t> ids(rows);
  // Ids range from just before the table's first row to just after its last; some are far away.
  for (auto& id : ids) id = static_cast<std::int32_t>(first_id - 2 + random() % (entries + 4));
  if (rows > 2) ids[1] = -1, ids[2] = std::numeric_limits<std::int32_t>::max();
  std::vector<T> table = testing::normal_values<T>(entries * columns, 3);
  std::vector<T> expected(rows * columns, from_float<T>(0));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t entry = ids[row] - first_id;
    if (entry < 0 || entry >= entries) continue;
    std::copy_n(table.begin() + entry * columns, columns, expected.begin() + row * columns);
  }

  const auto stream = backend.create_stream();
  Placed<T> table_there(backend, *stream, table, shift);
  Placed<T> out_there(backend, *stream, std::vector<T>(rows * columns, from_float<T>(-7)), shift);
  Placed<std::int32_t> ids_there(backend, *stream, ids);
  embedding({.out = out_there.view({rows, columns}),
             .ids = ids_there.view({rows}),
             .table = table_there.view({entries, columns}),
             .first_id = first_id},
            *stream);
  CHECK(same_bits(out_there.fetch(), expected));
  CHECK(same_bits(table_there.fetch(), table));
}

TEST_CASE_TEMPLATE("embedding gives the rows of the table, and zeros beyond it", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][3] = {
      {1, 1, 1},     {0, 8, 5},      {5, 0, 5},     {5, 8, 0},     {3, 7, 10},  {1, 4096, 9},
      {300, 64, 50}, {40, 1001, 30}, {2, 5000, 11}, {1000, 16, 4}, {5, 8200, 3}};
  for (const auto& shape : kShapes) {
    for (const std::int64_t first_id : {0, 1000}) {
      for (const std::int64_t shift : {0, 1}) {
        check_against_reference<T>(*backend, shape[0], shape[1], shape[2], first_id, shift);
      }
    }
  }
}

TEST_CASE_TEMPLATE("embedding multiplies rows by the scale, and rounds once", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kRows = 5, kEntries = 9;
  const std::vector<std::int32_t> ids = {3, 8, 12, 3, 4};  // the third is in no row
  for (const std::int64_t columns : {1, 7, 48, 64, 1001, 5376}) {
    for (const std::int64_t shift : {0, 1}) {
      CAPTURE(columns);
      CAPTURE(shift);
      const float scale = std::sqrt(static_cast<float>(columns + 1));
      const std::vector<T> table = testing::normal_values<T>(kEntries * columns, 4);
      std::vector<T> expected;
      for (const std::int32_t id : ids) {
        for (std::int64_t i = 0; i < columns; ++i) {
          const bool inside = id - 2 < kEntries;
          const float value = inside ? to_float(table[(id - 2) * columns + i]) * scale : 0.0f;
          expected.push_back(from_float<T>(value));
        }
      }
      const auto stream = backend->create_stream();
      Placed<T> table_there(*backend, *stream, table, shift);
      Placed<T> out_there(*backend, *stream, std::vector<T>(kRows * columns), shift);
      Placed<std::int32_t> ids_there(*backend, *stream, ids);
      embedding({.out = out_there.view({kRows, columns}),
                 .ids = ids_there.view({kRows}),
                 .table = table_there.view({kEntries, columns}),
                 .first_id = 2,
                 .scale = scale},
                *stream);
      CHECK(same_bits(out_there.fetch(), expected));
    }
  }
}

TEST_CASE("embedding reads the ids when a graph runs") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  std::vector<float> table(100);
  for (int i = 0; i < 100; ++i) table[i] = static_cast<float>(i);
  Placed<float> table_there(*backend, *stream, table);
  Placed<float> out_there(*backend, *stream, std::vector<float>(4));
  Buffer ids = backend->allocate(MemoryKind::pinned, sizeof(std::int32_t), "test");
  Placed<std::int32_t> ids_there(*backend, *stream, {0});
  const auto graph = backend->capture(*stream, [&] {
    backend->copy(ids_there.data(), ids.data(), sizeof(std::int32_t), *stream);
    embedding({.out = out_there.view({1, 4}),
               .ids = ids_there.view({1}),
               .table = table_there.view({25, 4})},
              *stream);
  });
  for (const int id : {7, 24, 25}) {
    *static_cast<std::int32_t*>(ids.data()) = id;
    graph->launch(*stream);
    CHECK(out_there.fetch()[1] == (id < 25 ? static_cast<float>(4 * id + 1) : 0.0f));
  }
}

TEST_CASE("embedding refuses arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), type, shape);
  };
  const Embedding good{.out = tensor(DType::bf16, {2, 8}),
                       .ids = tensor(DType::i32, {2}),
                       .table = tensor(DType::bf16, {5, 8})};
  const auto why = [&](const auto& spoil) {
    Embedding bad = good;
    spoil(bad);
    return refusal(*backend, [&](Stream& stream) { embedding(bad, stream); });
  };
  CHECK(why([](Embedding&) {}) == "");
  CHECK(why([&](Embedding& bad) {
          bad.table = tensor(DType::i32, {5, 8});
        }) == "embedding: table is int32 [5, 8]; it must be float32, bfloat16 or float16");
  CHECK(why([&](Embedding& bad) { bad.table = tensor(DType::bf16, {40}); }) ==
        "embedding: table is bfloat16 [40]; it must be [entries, columns]");
  CHECK(why([](Embedding& bad) { bad.table.stride[0] = 16; }) ==
        "embedding: table is bfloat16 [5, 8] with strides [16, 1]; it must be dense and row-major");
  CHECK(why([&](Embedding& bad) {
          bad.out = tensor(DType::f32, {2, 8});
        }) == "embedding: out is float32 [2, 8]; it must be bfloat16 [2, 8]");
  CHECK(why([&](Embedding& bad) {
          bad.out = tensor(DType::bf16, {2, 7});
        }) == "embedding: out is bfloat16 [2, 7]; it must be bfloat16 [2, 8]");
  CHECK(why([](Embedding& bad) { bad.out.stride[1] = 2; }).find("embedding: out is ") == 0);
  CHECK(why([&](Embedding& bad) { bad.ids = tensor(DType::i64, {2}); }) ==
        "embedding: ids is int64 [2]; it must be int32 [2]");
  CHECK(why([&](Embedding& bad) { bad.ids = tensor(DType::i32, {3}); }) ==
        "embedding: ids is int32 [3]; it must be int32 [2]");
  CHECK(why([](Embedding& bad) { bad.ids.stride[0] = 2; }).find("embedding: ids is ") == 0);
  CHECK(why([](Embedding& bad) {
          bad.out.data = bad.out.as<char>() + 1;
        }).find("embedding: out lies at ") == 0);
  CHECK(why([](Embedding& bad) { bad.table.data = nullptr; }) ==
        "embedding: table, bfloat16 [5, 8], has no memory");
}

}  // namespace
}  // namespace nvllm::kernels
