// Weighted sums of experts' rows against their plain definition.
#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/moe/moe.h"
#include "kernels/moe/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;

struct CombineShape {
  std::int64_t rows, columns, k;
};

// Any order of the entries.
std::vector<std::int32_t> shuffled(std::int64_t count, std::mt19937& random) {
  std::vector<std::int32_t> entries(static_cast<std::size_t>(count));
  std::iota(entries.begin(), entries.end(), 0);
  std::ranges::shuffle(entries, random);
  return entries;
}

template <typename T>
int count_wrong(Backend& backend, const CombineShape& shape, bool residual, bool in_place,
                std::mt19937& random, bool has_shared = false, bool some_own = false) {
  const auto stream = backend.create_stream();
  const std::int64_t rows = shape.rows, columns = shape.columns, k = shape.k;
  std::vector<T> experts = testing::normal_values<T>(rows * k * columns, random());
  std::vector<T> before = testing::normal_values<T>(rows * columns, random());
  std::vector<float> weights = testing::normal_values<float>(rows * k, random(), 0.3f, 0.3f);
  std::vector<std::int32_t> entries = shuffled(rows * k, random);
  Placed<T> experts_there(backend, *stream, experts, 1), before_there(backend, *stream, before, 1);
  Placed<T> out(backend, *stream, before, 1);
  Placed<float> weights_there(backend, *stream, weights);
  Placed<std::int32_t> entries_there(backend, *stream, entries);
  CombineExperts args{.out = out.view({rows, columns}),
                      .experts = experts_there.view({rows * k, columns}),
                      .weights = weights_there.view({rows, k}),
                      .entries = entries_there.view({rows, k})};
  if (residual) args.residual = in_place ? args.out : before_there.view({rows, columns});
  std::vector<T> shared = testing::normal_values<T>(rows * columns, random());
  std::vector<float> gate = testing::normal_values<float>(rows, random(), 0, 3);
  Placed<T> shared_there(backend, *stream, shared, 1);
  Placed<float> gate_there(backend, *stream, gate);
  if (has_shared) {
    args.shared = shared_there.view({rows, columns});
    args.shared_gate = gate_there.view({rows, 1});
  }
  // The rank's own experts are the second and the third of five.
  std::vector<std::int32_t> start = {static_cast<std::int32_t>(rows * k / 4),
                                     static_cast<std::int32_t>(rows * k / 2),
                                     static_cast<std::int32_t>(rows * k * 3 / 4)};
  Placed<std::int32_t> start_there(backend, *stream, start);
  if (some_own) args.own_start = start_there.view({3});
  combine_experts(args, *stream);

  std::vector<T> right(before.size());
  CombineExperts here{.out = {right.data(), dtype_of<T>, {rows, columns}},
                      .experts = {experts.data(), dtype_of<T>, {rows * k, columns}},
                      .weights = {weights.data(), DType::f32, {rows, k}},
                      .entries = {entries.data(), DType::i32, {rows, k}}};
  if (residual) here.residual = {before.data(), dtype_of<T>, {rows, columns}};
  if (has_shared) {
    here.shared = {shared.data(), dtype_of<T>, {rows, columns}};
    here.shared_gate = {gate.data(), DType::f32, {rows, 1}};
  }
  if (some_own) here.own_start = {start.data(), DType::i32, {3}};
  combine_experts_reference(here);
  int wrong = 0;
  const std::vector<T> got = out.fetch();
  for (std::size_t i = 0; i < got.size(); ++i) {
    // Roundings of k summands up to 4 each, and of a shared expert's, then one of T before the
    // residual.
    const float sum = to_float(right[i]) - (residual ? to_float(before[i]) : 0);
    const float off = static_cast<float>(4 * (k + (has_shared ? 1 : 0))) * 0x1p-22f +
                      (residual ? (std::fabs(sum) + 1e-3f) * testing::Limits<T>::kUlp : 0);
    wrong += !testing::near(got[i], right[i], off);
  }
  return wrong;
}

TEST_CASE_TEMPLATE("combine_experts is what its definition says, for all shapes", T, float, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(13);
  std::vector<CombineShape> shapes = {{0, 8, 2}, {3, 0, 2}, {1, 1, 1}, {5, 64, 2}, {1, 4096, 8}};
  for (int i = 0; i < (nvllm::testing::kSanitized ? 5 : 40); ++i) {
    shapes.push_back({static_cast<std::int64_t>(1 + random() % 40),
                      static_cast<std::int64_t>(1 + random() % 300),
                      static_cast<std::int64_t>(1 + random() % 12)});
  }
  for (const CombineShape& shape : shapes) {
    CAPTURE(shape.rows);
    CAPTURE(shape.columns);
    CAPTURE(shape.k);
    CHECK(count_wrong<T>(*backend, shape, false, false, random) == 0);
    CHECK(count_wrong<T>(*backend, shape, true, false, random) == 0);
    CHECK(count_wrong<T>(*backend, shape, true, true, random) == 0);
    CHECK(count_wrong<T>(*backend, shape, false, false, random, true) == 0);
    CHECK(count_wrong<T>(*backend, shape, true, true, random, true) == 0);
    CHECK(count_wrong<T>(*backend, shape, true, false, random, true, true) == 0);
  }
}

TEST_CASE_TEMPLATE("the sum may stay in float32, and be of some of the rows", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  constexpr std::int64_t kRows = 7, kEach = 3, kFirst = 2, kSome = 4;
  std::mt19937 random(3);
  for (const std::int64_t columns : {1, 37, 44, 64, 4096}) {
    CAPTURE(columns);
    const Placed<T> experts(*backend, *stream,
                            testing::normal_values<T>(kRows * kEach * columns, random()), 0);
    const Placed<float> weights(*backend, *stream,
                                testing::normal_values<float>(kRows * kEach, random()));
    const Placed<std::int32_t> entries(*backend, *stream, shuffled(kRows * kEach, random));
    Placed<T> rounded(*backend, *stream, std::vector<T>(kRows * columns), 0);
    Placed<float> whole(*backend, *stream, std::vector<float>(kSome * columns));
    CombineExperts args{.out = rounded.view({kRows, columns}),
                        .experts = experts.view({kRows * kEach, columns}),
                        .weights = weights.view({kRows, kEach}),
                        .entries = entries.view({kRows, kEach})};
    combine_experts(args, *stream);
    args.out = whole.view({kSome, columns});
    args.weights = args.weights.rows(kFirst, kSome);
    args.entries = args.entries.rows(kFirst, kSome);
    combine_experts(args, *stream);
    const std::vector<T> got = rounded.fetch();
    const std::vector<float> floats = whole.fetch();
    int wrong = 0, unrounded = 0;
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const float right = to_float(got[static_cast<std::size_t>(kFirst * columns) + i]);
      wrong += to_float(from_float<T>(floats[i])) != right;
      unrounded += floats[i] != right;
    }
    CHECK(wrong == 0);
    CHECK(unrounded > 0);
  }
}

TEST_CASE("combine_experts refuses what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Placed<float> floats(*backend, *stream, std::vector<float>(64));
  const Placed<std::int32_t> ints(*backend, *stream, std::vector<std::int32_t>(8));
  stream->synchronize();
  float* const some = floats.data();
  std::int32_t* const integers = ints.data();
  const auto with = [&](const std::function<void(CombineExperts&)>& change) {
    CombineExperts args{.out = {some, DType::f32, {2, 6}},
                        .experts = {some, DType::f32, {6, 6}},
                        .weights = {some, DType::f32, {2, 3}},
                        .entries = {integers, DType::i32, {2, 3}}};
    change(args);
    return refusal(*backend, [&](Stream& stream) { combine_experts(args, stream); });
  };
  using Args = CombineExperts;
  CHECK(with([](Args&) {}) == "");
  CHECK(with([](Args& args) { args.out.dtype = DType::i32; }).starts_with("combine_experts: out"));
  CHECK(with([](Args& args) { args.experts.shape[0] = 5; }).starts_with("combine_experts: exper"));
  CHECK(with([](Args& args) { args.weights.shape[1] = 0; }) ==
        "combine_experts: weights is float32 [2, 0]; it must be [rows, k] with k from 1 on");
  CHECK(with([](Args& args) {
          args.entries.dtype = DType::f32;
        }).starts_with("combine_experts: entries"));
  CHECK(with([&](Args& args) {
          args.residual = {some, DType::f32, {2, 5}};
        }).starts_with("combine_experts: residual"));
  CHECK(with([&](Args& args) {
          args.shared = {some, DType::f32, {2, 6}};
        }).starts_with("combine_experts: shared_gate"));
}

}  // namespace
}  // namespace nvllm::kernels
