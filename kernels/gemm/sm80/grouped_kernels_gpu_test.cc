// The kernels of grouped GEMMs for few rows and in tiles give the same bits, whichever a GPU has
// them computed by.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/gemm/sm80/grouped_gemm.h"
#include "kernels/gemm/testing/guarded_matrix.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

struct Shape {
  std::vector<std::int32_t> start;
  std::int64_t outputs, inputs;
  DType type;
  bool gathers, activates;
};

Shape random_shape(std::mt19937& random) {
  Shape shape{.start = {0},
              .outputs = static_cast<std::int64_t>(16 * (1 + random() % 24)),
              .inputs = static_cast<std::int64_t>(8 * (1 + random() % 60)),
              .type = random() % 2 == 0 ? DType::bf16 : DType::f16,
              .gathers = random() % 2 == 0,
              .activates = random() % 2 == 0};
  const unsigned groups = 1 + random() % 40, max_rows = 1 + random() % 90;
  for (unsigned group = 0; group < groups; ++group) {
    const unsigned rows = random() % 3 == 0 ? 0 : random() % max_rows;
    shape.start.push_back(shape.start.back() + static_cast<std::int32_t>(rows));
  }
  return shape;
}

bool same_bits(Backend& backend, const Shape& shape, std::mt19937& random) {
  const auto stream = backend.create_stream();
  const std::int64_t groups = std::ssize(shape.start) - 1, m = shape.start.back();
  const std::int64_t columns = shape.activates ? shape.outputs / 2 : shape.outputs;
  Matrix weight(backend, shape.type, groups * shape.outputs, shape.inputs);
  Matrix x(backend, shape.type, m + 3, shape.inputs);
  Matrix few(backend, shape.type, m, columns), tiles(backend, shape.type, m, columns);
  weight.fill(random, 0, 0.3f);
  x.fill(random, 0, 1);
  few.fill(random, std::nanf(""), 0);
  tiles.fill(random, std::nanf(""), 0);
  for (Matrix* matrix : {&weight, &x, &few, &tiles}) matrix->upload(*stream);
  std::vector<std::int32_t> source;
  for (std::int64_t row = 0; row < m; ++row) {
    source.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(m + 3)));
  }
  const Placed<std::int32_t> start(backend, *stream, shape.start);
  const Placed<std::int32_t> source_rows(backend, *stream, source);
  GroupedGemm grouped{.weight = {.values = weight.there},
                      .start = start.view({groups + 1}),
                      .out = few.there,
                      .x = shape.gathers ? x.there : x.there.rows(0, m)};
  if (shape.gathers) grouped.source_rows = source_rows.view({m});
  if (shape.activates) grouped.epilogue = Epilogue::gated_activation;
  cuda::grouped_few_rows(grouped, *stream);
  grouped.out = tiles.there;
  cuda::grouped_tiles(grouped, *stream);
  few.fetch(*stream);
  tiles.fetch(*stream);
  CHECK(few.touched() + tiles.touched() == 0);
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      if (!std::isfinite(get(few.here, row, column))) return false;
    }
  }
  return bytes_of_rows(few.here) == bytes_of_rows(tiles.here);
}

TEST_CASE("grouped GEMMs for few rows and in tiles give the same bits") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(17);
  for (int i = 0; i < 40; ++i) {
    const Shape shape = random_shape(random);
    CAPTURE(i);
    CAPTURE(shape.start.back());
    CHECK(same_bits(*backend, shape, random));
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
