// Deferred RMSNorms: started by the GEMM that makes the rows, ended by the one that reads them.
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/gemm/testing/references.h"
#include "kernels/pointwise/elementwise.h"

namespace nvllm::kernels::testing {
namespace {

// Some for every tile M that there is a kernel for (kernels/gemm/small_m_plan.h).
constexpr std::array<std::int64_t, 9> kDeferredM = {17, 32, 33, 47, 64, 79, 90, 100, 128};

// A row of hidden values is made by one GEMM and read by the next.
struct Shape {
  std::int64_t inputs, hidden, outputs;
};
constexpr Shape kShapes[] = {
    {128, 1024, 1024}, {2048, 128, 384}, {64, 2560, 128}, {640, 192, 1600}, {128, 4096, 192}};

DeferredNorm deferred_of(const Matrix& weighted, const Matrix& squares) {
  return {.weighted = weighted.there, .squares = squares.there};
}

// Runs the first GEMM, which defers the next norm; false if it cannot.
bool run_deferring(Fixture& fixture, GemmTensors& first, const Matrix& norm_weight,
                   Matrix& weighted, Matrix& squares) {
  GemmArguments all = first.arguments();
  all.operands.epilogue.norm_weight = vector_of(norm_weight.there);
  all.operands.epilogue.deferred = deferred_of(weighted, squares);
  const GemmCall call = fixture.call(all);
  if (!call.plan.defers_next) return false;
  fixture.gemm->run(call, *fixture.stream);
  for (Matrix* one : {&first.out, &weighted, &squares}) one->fetch(*fixture.stream);
  return true;
}

// Where a deferred norm is not what its definition makes of the rows.
int count_wrong_deferred(const GemmTensors& first, const Matrix& norm_weight,
                         const Matrix& weighted, const Matrix& squares) {
  const Setting& s = first.setting;
  std::vector<char> rounded(static_cast<std::size_t>(s.m * s.outputs) * size_of(s.type));
  std::vector<float> sums(static_cast<std::size_t>(squares.here.elements()));
  const DeferredNorm right{.weighted = TensorView(rounded.data(), s.type, {s.m, s.outputs}),
                           .squares = TensorView(sums.data(), DType::f32,
                                                 {squares.here.shape[0], squares.here.shape[1]})};
  GemmOperands operands{.out = first.out.here, .x = first.x.here};
  operands.epilogue = {.norm_weight = vector_of(norm_weight.here), .deferred = right};
  defer_norm_reference(plain_call({.values = first.weight.here}, operands));
  int wrong = 0;
  for (std::int64_t r = 0; r < s.m; ++r) {
    for (std::int64_t o = 0; o < s.outputs; ++o)
      wrong += get(weighted.here, r, o) != get(right.weighted, r, o);
    for (std::int64_t part = 0; part < squares.here.shape[0]; ++part) {
      const float value = get(squares.here, part, r), sum = get(right.squares, part, r);
      wrong += !(std::fabs(value - sum) <= 128 * 0x1p-24f * sum);
    }
  }
  return wrong;
}

// How many results of the second GEMM are further from the definition of a deferred norm than
// rounding explains.
int count_wrong_ended(const GemmTensors& second, const DeferredNorm& deferred) {
  const Setting& s = second.setting;
  std::vector<float> memory(static_cast<std::size_t>(s.m * s.outputs));
  const TensorView sums(memory.data(), DType::f32, {s.m, s.outputs});
  GemmWeight weight{.values = second.weight.here};
  if (s.bias) weight.bias = vector_of(second.bias.here);
  GemmOperands operands{.out = sums, .x = deferred.weighted};  // x itself is not looked at
  operands.prologue.deferred = deferred;
  GemmCall reference = plain_call(weight, operands);
  reference.plan.prologue = Prologue::deferred_rms_norm;
  gemm_reference(reference);
  const Precision precision = precision_of(second.out.here.dtype);
  const TermSums term_sum(deferred.weighted, second.weight.here);
  int wrong = 0;
  for (std::int64_t r = 0; r < s.m; ++r) {
    double square = 0;
    for (std::int64_t part = 0; part < deferred.squares.shape[0]; ++part)
      square += get(deferred.squares, part, r);
    const double factor = 1 / std::sqrt(square / static_cast<double>(s.inputs));
    for (std::int64_t o = 0; o < s.outputs; ++o) {
      const float value = get(second.out.here, r, o), right = get(sums, r, o);
      const double terms = factor * term_sum(r, o) + std::fabs(right);
      const double tolerance = static_cast<double>(s.inputs + 16) * 0x1p-23 * terms +
                               precision.ulp * std::fabs(right) + 2 * precision.min;
      wrong += !(std::fabs(double{value} - right) <= tolerance);
    }
  }
  return wrong;
}

TEST_CASE_TEMPLATE("a norm is started by the GEMM ahead of it and ended by the one that reads it",
                   T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  std::mt19937 random(130);
  int deferred = 0, ended = 0;
  for (const std::int64_t m : kDeferredM) {
    for (const Shape& shape : kShapes) {
      Setting making{.m = m,
                     .outputs = shape.hidden,
                     .inputs = shape.inputs,
                     .type = dtype_of<T>,
                     .bias = random() % 2 == 0,
                     .residual = random() % 2 == 0};
      making.in_place = random() % 3 == 0;
      GemmTensors first(*backend, making, random());
      Matrix residual(*backend, making.type, m, shape.hidden);
      GemmTensors::copy_values(first.residual.here, residual.here);
      Setting reading{.m = m,
                      .outputs = shape.outputs,
                      .inputs = shape.hidden,
                      .type = dtype_of<T>,
                      .float_out = random() % 4 == 0,
                      .bias = random() % 2 == 0,
                      .prologue = Prologue::rms_norm};
      INFO(making.describe());
      INFO(reading.describe());
      GemmTensors second(*backend, reading, random());
      Matrix weighted(*backend, making.type, m, shape.hidden);
      Matrix squares(*backend, DType::f32, shape.hidden / kSquaresColumns, kSquaresRows);
      weighted.fill(random, std::nanf(""), 0);
      squares.fill(random, std::nanf(""), 0);
      GemmArguments all = second.arguments();
      all.operands.prologue.deferred = deferred_of(weighted, squares);
      // Whether the second GEMM ends the norm; then it must not look at its rows themselves.
      const bool ends = fixture.call(all).plan.prologue == Prologue::deferred_rms_norm;
      if (ends) second.x.fill(random, std::nanf(""), 0);
      for (Matrix* one : {&weighted, &squares}) one->upload(*fixture.stream);
      first.upload(*fixture.stream);
      second.upload(*fixture.stream);
      if (!run_deferring(fixture, first, second.norm_weight, weighted, squares)) continue;
      ++deferred;
      CHECK(weighted.touched() == 0);
      CHECK(count_wrong(first, first.x.here, residual.here) == 0);
      CHECK(count_wrong_deferred(first, second.norm_weight, weighted, squares) == 0);

      if (reading.float_out) CHECK(ends);
      if (!ends) all.operands.x = first.out.there;
      fixture.run(all);
      second.out.fetch(*fixture.stream);
      CHECK(second.out.touched() == 0);
      if (!ends) continue;
      ++ended;
      CHECK(count_wrong_ended(second, {.weighted = weighted.here, .squares = squares.here}) == 0);
    }
  }
  if (deferred == 0) SKIP_TEST("no GEMM defers a norm here");
  CHECK(deferred >= 36);
  CHECK(ended >= 22);
}

TEST_CASE("a gated GEMM that ends a norm has the bits of its parts") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  std::mt19937 random(140);
  for (const std::int64_t m : {17, 64, 100}) {
    const Setting making{.m = m, .outputs = 1024, .inputs = 512, .type = DType::bf16};
    const Setting reading{.m = m,
                          .outputs = 3072,
                          .inputs = 1024,
                          .type = DType::bf16,
                          .prologue = Prologue::rms_norm};
    CAPTURE(m);
    GemmTensors first(*backend, making, random()), second(*backend, reading, random());
    Matrix weighted(*backend, making.type, m, 1024);
    Matrix squares(*backend, DType::f32, 1024 / kSquaresColumns, kSquaresRows);
    Matrix activated(*backend, making.type, m, 1536), right(*backend, making.type, m, 1536);
    first.upload(*fixture.stream);
    second.upload(*fixture.stream);
    if (!run_deferring(fixture, first, second.norm_weight, weighted, squares))
      SKIP_TEST("no GEMM defers a norm here");
    GemmArguments all = second.arguments();
    all.operands.prologue.deferred = deferred_of(weighted, squares);
    fixture.run(all);
    gated_activation({.out = right.there, .x = all.operands.out}, *fixture.stream);
    all.operands.epilogue.gate_up = all.operands.out;
    all.operands.out = activated.there;
    all.fusion.epilogue = Epilogue::gated_activation;
    fixture.run(all);
    activated.fetch(*fixture.stream);
    right.fetch(*fixture.stream);
    int wrong = 0;
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t o = 0; o < 1536; ++o)
        wrong += get(activated.here, r, o) != get(right.here, r, o);
    }
    CHECK(wrong == 0);
  }
}

// A GEMM that cannot end a deferred norm does nothing with it.
TEST_CASE("rows whose norm is deferred are read themselves where the plan says so") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(150);
  const Setting setting{
      .m = 20, .outputs = 40, .inputs = 64, .type = DType::f32, .prologue = Prologue::rms_norm};
  GemmTensors tensors(*backend, setting, random());
  Matrix weighted(*backend, setting.type, 20, 64);
  Matrix squares(*backend, DType::f32, 1, kSquaresRows);
  for (Matrix* one : {&weighted, &squares}) {
    one->fill(random, std::nanf(""), 0);
    one->upload(*fixture.stream);
  }
  tensors.upload(*fixture.stream);
  GemmArguments all = tensors.arguments();
  all.operands.prologue.deferred = deferred_of(weighted, squares);
  fixture.run(all);
  tensors.out.fetch(*fixture.stream);
  const Matrix x = tensors.prepared_x(*backend, *fixture.stream);
  CHECK(count_wrong(tensors, x.here, tensors.residual.here) == 0);
}

}  // namespace
}  // namespace nvllm::kernels::testing
