// Scaled sums against their plain definition.
#include <functional>

#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;

// shift: elements from an aligned address to each tensor.
template <typename T>
void check_against_reference(Backend& backend, std::int64_t rows, std::int64_t columns, bool has_b,
                             bool has_factor, std::int64_t shift) {
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(has_b);
  CAPTURE(has_factor);
  CAPTURE(shift);
  const auto stream = backend.create_stream();
  std::vector<T> right = testing::normal_values<T>(rows * columns, 3, 0, 2);
  std::vector<T> more = testing::normal_values<T>(rows * columns, 4, 0, 2);
  std::vector<T> factors = {from_float<T>(0.4375f)};
  Placed<T> a(backend, *stream, right, shift), b(backend, *stream, more, shift),
      factor(backend, *stream, factors, shift);
  const auto args = [&](TensorView x, TensorView y, TensorView by) {
    return ScaledSum{.out = x,
                     .a = x,
                     .b = has_b ? y : TensorView(),
                     .scale = 0.75f,
                     .factor = has_factor ? by : TensorView()};
  };
  scaled_sum(args(a.view({rows, columns}), b.view({rows, columns}), factor.view({1})), *stream);
  scaled_sum_reference(args({right.data(), dtype_of<T>, {rows, columns}},
                            {more.data(), dtype_of<T>, {rows, columns}},
                            {factors.data(), dtype_of<T>, {1}}));
  int wrong = 0;
  const std::vector<T> got = a.fetch();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float off = 4 * 0x1p-24f * std::fabs(to_float(right[i])) + 0x1p-24f;
    wrong += !testing::near(got[i], right[i], off);
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("scaled_sum is what its definition says, for all shapes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][2] = {{0, 8},  {3, 0},     {1, 1},    {5, 64},
                                         {7, 13}, {300, 130}, {40, 2560}};
  for (const auto& shape : kShapes) {
    for (const bool has_b : {true, false}) {
      for (const bool has_factor : {true, false}) {
        for (const std::int64_t shift : {0, 1}) {
          check_against_reference<T>(*backend, shape[0], shape[1], has_b, has_factor, shift);
        }
      }
    }
  }
}

TEST_CASE("scaled_sum takes rows that lie apart, and leaves what is between them") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  struct Place {
    std::int64_t from, to, columns, stride;
  };
  // The latter in whole vectors.
  for (const Place& place : {Place{1, 11, 9, 20}, {4, 12, 8, 24}}) {
    constexpr std::int64_t kRows = 6;
    const std::vector<float> start = testing::normal_values<float>(kRows * place.stride, 3);
    Placed<float> all(*backend, *stream, start, 0);
    const auto columns_of = [&](std::int64_t first) {
      TensorView part = all.view({kRows, place.stride});
      part.data = all.data() + first;
      part.shape[1] = place.columns;
      return part;
    };
    scaled_sum({.out = columns_of(place.to), .a = columns_of(place.from), .scale = 2}, *stream);
    const std::vector<float> got = all.fetch();
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < place.stride; ++i) {
        const auto at = static_cast<std::size_t>(row * place.stride + i);
        const bool changed = i >= place.to && i < place.to + place.columns;
        CHECK(got[at] == (changed ? 2 * start[at - place.to + place.from] : start[at]));
      }
    }
  }
}

TEST_CASE("scaled_sum refuses what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Placed<float> floats(*backend, *stream, std::vector<float>(64));
  stream->synchronize();
  const auto with = [&](const std::function<void(ScaledSum&)>& change) {
    ScaledSum args{.out = {floats.data(), DType::f32, {2, 6}},
                   .a = {floats.data() + 16, DType::f32, {2, 6}},
                   .b = {floats.data() + 32, DType::f32, {2, 6}},
                   .factor = {floats.data() + 48, DType::f32, {1}}};
    change(args);
    return refusal(*backend, [&](Stream& stream) { scaled_sum(args, stream); });
  };
  CHECK(with([](ScaledSum&) {}) == "");
  CHECK(with([](ScaledSum& args) { args.out.dtype = DType::i32; }).starts_with("scaled_sum: out"));
  CHECK(with([](ScaledSum& args) { args.a.shape[1] = 5; }).starts_with("scaled_sum: a"));
  CHECK(with([](ScaledSum& args) { args.b.dtype = DType::bf16; }).starts_with("scaled_sum: b"));
  CHECK(with([](ScaledSum& args) { args.factor.shape[0] = 2; }).starts_with("scaled_sum: factor"));
}

}  // namespace
}  // namespace nvllm::kernels
