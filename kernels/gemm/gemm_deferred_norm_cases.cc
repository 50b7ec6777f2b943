// Norms in halves: begun by the product that makes the rows, ended by the one that reads them.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm/testing/linear_case.h"
#include "kernels/pointwise/activation.h"

namespace nvllm::kernels::testing {
namespace {

// Some for every size that kernels have room for (kernels/gemm/skinny_plan.h).
constexpr std::array<std::int64_t, 9> kRows = {17, 32, 33, 47, 64, 79, 90, 100, 128};

// A row of hidden values is made by one product and read by the next.
struct Shape {
  std::int64_t inputs, hidden, outputs;
};
constexpr Shape kShapes[] = {
    {128, 1024, 1024}, {2048, 128, 384}, {64, 2560, 128}, {640, 192, 1600}, {128, 4096, 192}};

BegunNorm begun_of(const Matrix& weighted, const Matrix& squares) {
  return {.weighted = weighted.there, .squares = squares.there};
}

// Runs the first product, which begins a norm; false if it cannot.
bool begin(Bench& bench, Product& first, const Matrix& norm_weight, Matrix& weighted,
           Matrix& squares) {
  Linear args = first.args();
  if (!bench.matmul->begins_norm(args)) return false;
  args.begins = begun_of(weighted, squares);
  args.next_norm_weight = vector_of(norm_weight.there);
  bench.matmul->linear(args, *bench.stream);
  for (Matrix* one : {&first.out, &weighted, &squares}) one->fetch(*bench.stream);
  return true;
}

// Where what was left of a norm is not what its definition makes of the rows.
int count_wrong_begun(const Product& first, const Matrix& norm_weight, const Matrix& weighted,
                      const Matrix& squares) {
  const Setting& s = first.setting;
  std::vector<char> rounded(static_cast<std::size_t>(s.rows * s.outputs) * size_of(s.type));
  std::vector<float> sums(static_cast<std::size_t>(squares.here.elements()));
  Linear right;
  right.out = first.out.here;
  right.weight = first.weight.here;
  right.next_norm_weight = vector_of(norm_weight.here);
  right.begins.weighted = TensorView(rounded.data(), s.type, {s.rows, s.outputs});
  right.begins.squares =
      TensorView(sums.data(), DType::f32, {squares.here.shape[0], squares.here.shape[1]});
  begin_norm_reference(right);
  int wrong = 0;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t o = 0; o < s.outputs; ++o)
      wrong += get(weighted.here, r, o) != get(right.begins.weighted, r, o);
    for (std::int64_t part = 0; part < squares.here.shape[0]; ++part) {
      const float value = get(squares.here, part, r), sum = get(right.begins.squares, part, r);
      wrong += !(std::fabs(value - sum) <= 128 * 0x1p-24f * sum);
    }
  }
  return wrong;
}

// How many results of the second product are further from the definition of halves than rounding explains.
int count_wrong_ended(const Product& second, const BegunNorm& begun) {
  const Setting& s = second.setting;
  std::vector<float> sums(static_cast<std::size_t>(s.rows * s.outputs));
  Linear call;
  call.out = TensorView(sums.data(), DType::f32, {s.rows, s.outputs});
  call.x = begun.weighted;  // not looked at
  call.weight = second.weight.here;
  if (s.bias) call.bias = vector_of(second.bias.here);
  call.begun = begun;
  linear_reference(call);
  const Precision precision = precision_of(second.out.here.dtype);
  const TermSums term_sum(begun.weighted, second.weight.here);
  int wrong = 0;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    double square = 0;
    for (std::int64_t part = 0; part < begun.squares.shape[0]; ++part)
      square += get(begun.squares, part, r);
    const double factor = 1 / std::sqrt(square / static_cast<double>(s.inputs));
    for (std::int64_t o = 0; o < s.outputs; ++o) {
      const float value = get(second.out.here, r, o), right = get(call.out, r, o);
      const double terms = factor * term_sum(r, o) + std::fabs(right);
      const double tolerance = static_cast<double>(s.inputs + 16) * 0x1p-23 * terms +
                               precision.ulp * std::fabs(right) + 2 * precision.least;
      wrong += !(std::fabs(double{value} - right) <= tolerance);
    }
  }
  return wrong;
}

TEST_CASE_TEMPLATE("a norm is begun by the product before and ended by the product after it", T,
                   Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Bench bench(*backend);
  std::mt19937 random(130);
  int begun = 0, ended = 0;
  for (const std::int64_t rows : kRows) {
    for (const Shape& shape : kShapes) {
      Setting making{.rows = rows,
                     .outputs = shape.hidden,
                     .inputs = shape.inputs,
                     .type = dtype_of<T>,
                     .bias = random() % 2 == 0,
                     .residual = random() % 2 == 0};
      making.in_place = random() % 3 == 0;
      Product first(*backend, making, random());
      Matrix residual(*backend, making.type, rows, shape.hidden);
      Product::copy_values(first.residual.here, residual.here);
      Setting reading{.rows = rows,
                      .outputs = shape.outputs,
                      .inputs = shape.hidden,
                      .type = dtype_of<T>,
                      .float_out = random() % 4 == 0,
                      .bias = random() % 2 == 0,
                      .before = Before::rms_norm};
      INFO(making.describe());
      INFO(reading.describe());
      Product second(*backend, reading, random());
      Matrix weighted(*backend, making.type, rows, shape.hidden);
      Matrix squares(*backend, DType::f32, shape.hidden / kSquaresColumns, kSquaresRows);
      weighted.fill(random, std::nanf(""), 0);
      squares.fill(random, std::nanf(""), 0);
      // Whether the second product goes on from there; then it must not look at its rows themselves.
      Linear like = second.args();
      like.before = Before::nothing;
      const bool ends = reading.float_out || bench.matmul->begins_norm(like);
      if (ends) second.x.fill(random, std::nanf(""), 0);
      for (Matrix* one : {&weighted, &squares}) one->upload(*bench.stream);
      first.upload(*bench.stream);
      second.upload(*bench.stream);
      if (!begin(bench, first, second.norm_weight, weighted, squares)) continue;
      ++begun;
      CHECK(weighted.touched() == 0);
      CHECK(count_wrong(first, first.x.here, residual.here) == 0);
      CHECK(count_wrong_begun(first, second.norm_weight, weighted, squares) == 0);

      Linear args = second.args();
      args.begun = begun_of(weighted, squares);
      if (!ends) args.x = first.out.there;
      bench.matmul->linear(args, *bench.stream);
      second.out.fetch(*bench.stream);
      CHECK(second.out.touched() == 0);
      if (!ends) continue;
      ++ended;
      CHECK(count_wrong_ended(second, {.weighted = weighted.here, .squares = squares.here}) == 0);
    }
  }
  if (begun == 0) SKIP_TEST("no product begins a norm here");
  CHECK(begun >= 36);
  CHECK(ended >= 22);
}

TEST_CASE("a gated product that ends a norm has the bits of its parts") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Bench bench(*backend);
  std::mt19937 random(140);
  for (const std::int64_t rows : {17, 64, 100}) {
    const Setting making{.rows = rows, .outputs = 1024, .inputs = 512, .type = DType::bf16};
    const Setting reading{.rows = rows,
                          .outputs = 3072,
                          .inputs = 1024,
                          .type = DType::bf16,
                          .before = Before::rms_norm};
    CAPTURE(rows);
    Product first(*backend, making, random()), second(*backend, reading, random());
    Matrix weighted(*backend, making.type, rows, 1024);
    Matrix squares(*backend, DType::f32, 1024 / kSquaresColumns, kSquaresRows);
    Matrix activated(*backend, making.type, rows, 1536), right(*backend, making.type, rows, 1536);
    first.upload(*bench.stream);
    second.upload(*bench.stream);
    if (!begin(bench, first, second.norm_weight, weighted, squares))
      SKIP_TEST("no product begins a norm here");
    Linear args = second.args();
    args.begun = begun_of(weighted, squares);
    bench.matmul->linear(args, *bench.stream);
    gated_activation({.out = right.there, .x = args.out}, *bench.stream);
    args.product = args.out;
    args.out = activated.there;
    args.after = Linear::After::gated_activation;
    bench.matmul->linear(args, *bench.stream);
    activated.fetch(*bench.stream);
    right.fetch(*bench.stream);
    int wrong = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < 1536; ++o)
        wrong += get(activated.here, r, o) != get(right.here, r, o);
    }
    CHECK(wrong == 0);
  }
}

// What a product that cannot go on from a begun norm does with it: nothing.
TEST_CASE("rows whose norm is begun are read themselves where that is the way") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  std::mt19937 random(150);
  const Setting setting{
      .rows = 20, .outputs = 40, .inputs = 64, .type = DType::f32, .before = Before::rms_norm};
  Product product(*backend, setting, random());
  Matrix weighted(*backend, setting.type, 20, 64);
  Matrix squares(*backend, DType::f32, 1, kSquaresRows);
  for (Matrix* one : {&weighted, &squares}) {
    one->fill(random, std::nanf(""), 0);
    one->upload(*bench.stream);
  }
  product.upload(*bench.stream);
  Linear args = product.args();
  args.begun = begun_of(weighted, squares);
  bench.matmul->linear(args, *bench.stream);
  product.out.fetch(*bench.stream);
  const Matrix x = product.prepared(*backend, *bench.stream);
  CHECK(count_wrong(product, x.here, product.residual.here) == 0);
}

TEST_CASE("what does not fit a norm in halves is refused by name") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return TensorView(memory.data(), type, shape);
  };
  Linear good;
  good.x = good.scratch = tensor({20, 128});
  good.weight = tensor({64, 128});
  good.out = tensor({20, 64});
  good.before = Before::rms_norm;
  good.norm_weight = tensor({128});
  good.begun = {.weighted = tensor({20, 128}), .squares = tensor({2, 128}, DType::f32)};
  const auto refused = [&](auto change, const char* name) {
    Linear bad = good;
    change(bad);
    const std::string message = bench.refusal(bad);
    CHECK_MESSAGE(message.find(name) != std::string::npos, message);
  };
  refused([&](Linear& bad) { bad.begun.weighted = tensor({20, 64}); }, "begun.weighted");
  refused([&](Linear& bad) { bad.begun.squares = tensor({2, 64}, DType::f32); }, "begun.squares");
  refused([&](Linear& bad) { bad.begun.squares = tensor({2, 128}); }, "begun.squares");
  refused(
      [&](Linear& bad) {
        bad.x = bad.scratch = bad.begun.weighted = tensor({129, 128});
        bad.out = tensor({129, 64});
      },
      "up to 128 rows");
}

}  // namespace
}  // namespace nvllm::kernels::testing
