// The router against its plain definition, and what holds of it whatever the logits are.
#include <algorithm>
#include <functional>
#include <set>

#include "kernels/moe/moe.h"
#include "kernels/moe/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::kInfinity;
using testing::kNan;
using testing::Placed;
using testing::refusal;

struct Routed {
  std::vector<float> weights;
  std::vector<std::int32_t> expert_start, source_rows, entries;

  // By row, its experts in the order of their weights.
  std::vector<std::vector<std::int64_t>> experts(std::int64_t k) const {
    std::vector<std::vector<std::int64_t>> all(entries.size() / static_cast<std::size_t>(k));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto after = std::ranges::upper_bound(expert_start, entries[i]);
      all[i / static_cast<std::size_t>(k)].push_back(after - expert_start.begin() - 1);
    }
    return all;
  }
};

struct RouteShape {
  std::int64_t rows, experts, k;
};

Route arguments(const RouteShape& shape, bool renormalize) {
  Route args;
  args.logits = TensorView(nullptr, DType::f32, {shape.rows, shape.experts});
  args.weights = TensorView(nullptr, DType::f32, {shape.rows, shape.k});
  args.expert_start = TensorView(nullptr, DType::i32, {shape.experts + 1});
  args.source_rows = TensorView(nullptr, DType::i32, {shape.rows * shape.k});
  args.entries = TensorView(nullptr, DType::i32, {shape.rows, shape.k});
  args.renormalize = renormalize;
  return args;
}

// scales: of experts; empty: none.
template <typename Scale = float>
Routed routed(Backend& backend, const RouteShape& shape, const std::vector<float>& logits,
              bool renormalize, const std::vector<Scale>& scales = {}) {
  const auto stream = backend.create_stream();
  const auto entries = static_cast<std::size_t>(shape.rows * shape.k);
  Placed<float> logits_there(backend, *stream, logits, 1);
  Placed<float> weights(backend, *stream, std::vector<float>(entries, -77));
  Placed<std::int32_t> start(
      backend, *stream, std::vector<std::int32_t>(static_cast<std::size_t>(shape.experts) + 1, -7));
  Placed<std::int32_t> source(backend, *stream, std::vector<std::int32_t>(entries, -7));
  Placed<std::int32_t> places(backend, *stream, std::vector<std::int32_t>(entries, -7));
  Route args = arguments(shape, renormalize);
  args.logits.data = logits_there.data();
  args.weights.data = weights.data();
  args.expert_start.data = start.data();
  args.source_rows.data = source.data();
  args.entries.data = places.data();
  Placed<Scale> scales_there(backend, *stream, scales);
  if (!scales.empty()) args.scales = scales_there.view({shape.experts});
  route(args, *stream);
  CHECK(testing::same_bits(logits_there.fetch(), logits));
  return {weights.fetch(), start.fetch(), source.fetch(), places.fetch()};
}

Routed reference(const RouteShape& shape, std::vector<float> logits, bool renormalize,
                 std::vector<float> scales = {}) {
  const auto entries = static_cast<std::size_t>(shape.rows * shape.k);
  Routed right{
      .weights = std::vector<float>(entries),
      .expert_start = std::vector<std::int32_t>(static_cast<std::size_t>(shape.experts) + 1),
      .source_rows = std::vector<std::int32_t>(entries),
      .entries = std::vector<std::int32_t>(entries)};
  Route args = arguments(shape, renormalize);
  args.logits.data = logits.data();
  args.weights.data = right.weights.data();
  args.expert_start.data = right.expert_start.data();
  args.source_rows.data = right.source_rows.data();
  args.entries.data = right.entries.data();
  if (!scales.empty()) args.scales = TensorView(scales.data(), DType::f32, {shape.experts});
  route_reference(args);
  return right;
}

// What is wrong; "": nothing.
std::string compare(const Routed& got, const Routed& right) {
  if (got.expert_start != right.expert_start) return "other numbers of entries";
  if (got.entries != right.entries) return "other experts";
  if (got.source_rows != right.source_rows) return "other rows";
  for (std::size_t i = 0; i < got.weights.size(); ++i) {
    // Exponentials are within 3 units of 2^-24, their sums within one for each expert.
    const float off = 1e-5f * right.weights[i] + 1e-37f;
    if (!(std::fabs(got.weights[i] - right.weights[i]) <= off)) {
      return str("weight ", i, " is ", got.weights[i], ", not ", right.weights[i]);
    }
  }
  return "";
}

TEST_CASE("route is what its definition says, for all shapes") {
  BACKEND_OR_SKIP(backend);
  std::vector<RouteShape> shapes = {{0, 4, 2},     {1, 1, 1},       {1, 8, 2},
                                    {1, 128, 8},   {7, 5, 5},       {300, 16, 4},
                                    {64, 1024, 9}, {2, 1024, 1024}, {1000, 7, 1}};
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    const auto experts = static_cast<std::int64_t>(1 + random() % 70);
    shapes.push_back({static_cast<std::int64_t>(random() % 90), experts,
                      static_cast<std::int64_t>(1 + random() % experts)});
  }
  for (const RouteShape& shape : shapes) {
    for (const bool renormalize : {false, true}) {
      CAPTURE(shape.rows);
      CAPTURE(shape.experts);
      CAPTURE(shape.k);
      CAPTURE(renormalize);
      const auto logits = testing::normal_values<float>(shape.rows * shape.experts, random(), 0, 4);
      CHECK(compare(routed(*backend, shape, logits, renormalize),
                    reference(shape, logits, renormalize)) == "");
    }
  }
}

TEST_CASE("weights are multiplied by the scales of their experts") {
  BACKEND_OR_SKIP(backend);
  // A GPU has other kernels for few rows, for many, and for many experts.
  for (const RouteShape& shape :
       {RouteShape{40, 12, 3}, RouteShape{3, 128, 40}, RouteShape{600, 300, 4}}) {
    CAPTURE(shape.rows);
    const auto logits = testing::normal_values<float>(shape.rows * shape.experts, 1, 0, 2);
    const auto scales = testing::normal_values<float>(shape.experts, 2, 1, 0.2f);
    for (const bool renormalize : {false, true}) {
      const Routed right = reference(shape, logits, renormalize, scales);
      CHECK(compare(routed(*backend, shape, logits, renormalize, scales), right) == "");
      CHECK(compare(routed(*backend, shape, logits, renormalize), right) != "");
    }
  }
}

TEST_CASE_TEMPLATE("scales of experts have any type of float", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  const RouteShape shape{20, 12, 3};
  const auto logits = testing::normal_values<float>(shape.rows * shape.experts, 1, 0, 2);
  const auto scales = testing::normal_values<T>(shape.experts, 2, 1, 0.2f);
  std::vector<float> as_floats;
  for (const T scale : scales) as_floats.push_back(to_float(scale));
  CHECK(compare(routed<T>(*backend, shape, logits, true, scales),
                reference(shape, logits, true, as_floats)) == "");
}

TEST_CASE("of equal logits the lower expert comes first") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    const RouteShape shape{20, 12, 5};
    std::vector<float> logits(static_cast<std::size_t>(shape.rows * shape.experts));
    for (float& logit : logits) logit = static_cast<float>(random() % 4);
    CHECK(compare(routed(*backend, shape, logits, true), reference(shape, logits, true)) == "");
  }
}

TEST_CASE("large logits and those of minus infinity are probabilities, too") {
  BACKEND_OR_SKIP(backend);
  const RouteShape shape{3, 9, 2};
  std::vector<float> logits(27, -kInfinity);
  logits[4] = 1e30f, logits[7] = 3;
  logits[9 + 2] = -1e30f, logits[9 + 8] = -1e30f;
  logits[18 + 0] = 1000, logits[18 + 1] = 1000;
  const Routed got = routed(*backend, shape, logits, false);
  CHECK(got.weights == std::vector<float>{1, 0, 0.5f, 0.5f, 0.5f, 0.5f});
  CHECK(got.experts(2) == std::vector<std::vector<std::int64_t>>{{4, 7}, {2, 8}, {0, 1}});
}

TEST_CASE("NaN makes all weights of its row NaN, and its experts are some, each once") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    const RouteShape shape{6, static_cast<std::int64_t>(3 + random() % 20), 3};
    auto logits = testing::normal_values<float>(shape.rows * shape.experts, random());
    const auto row = static_cast<std::int64_t>(random() % 6);
    for (std::int64_t n = 0; n <= static_cast<std::int64_t>(random() % 4); ++n) {
      logits[static_cast<std::size_t>(row * shape.experts) + random() % shape.experts] =
          random() % 3 == 0 ? kInfinity : kNan;
    }
    const Routed got = routed(*backend, shape, logits, random() % 2 == 0);
    const auto experts = got.experts(shape.k);
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const auto& own = experts[static_cast<std::size_t>(r)];
      CHECK(std::set(own.begin(), own.end()).size() == 3);
      for (std::int64_t j = 0; j < shape.k; ++j) {
        CHECK(std::isnan(got.weights[static_cast<std::size_t>(r * shape.k + j)]) == (r == row));
      }
    }
  }
}

TEST_CASE("a row's experts and weights do not depend on its company") {
  BACKEND_OR_SKIP(backend);
  const RouteShape all{200, 60, 6};
  const auto logits = testing::normal_values<float>(all.rows * all.experts, 5, 0, 3);
  const Routed together = routed(*backend, all, logits, true);
  const auto experts = together.experts(6);
  for (std::int64_t row = 0; row < all.rows; row += 7) {
    const auto begin = logits.begin() + row * all.experts;
    const Routed alone =
        routed(*backend, {1, all.experts, all.k}, {begin, begin + all.experts}, true);
    CHECK(alone.experts(6).front() == experts[static_cast<std::size_t>(row)]);
    const auto own = together.weights.begin() + row * all.k;
    CHECK(testing::same_bits(alone.weights, {own, own + all.k}));
  }
}

TEST_CASE("route refuses what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Placed<float> floats(*backend, *stream, std::vector<float>(64));
  const Placed<std::int32_t> ints(*backend, *stream, std::vector<std::int32_t>(64));
  stream->synchronize();
  float* const some = floats.data();
  std::int32_t* const integers = ints.data();
  const auto with = [&](const std::function<void(Route&)>& change) {
    Route args = arguments({4, 6, 2}, false);
    args.logits.data = args.weights.data = some;
    args.expert_start.data = args.source_rows.data = args.entries.data = integers;
    change(args);
    return refusal(*backend, [&](Stream& stream) { route(args, stream); });
  };
  CHECK(with([](Route&) {}) == "");
  CHECK(with([](Route& args) { args.logits.dtype = DType::bf16; }).starts_with("route: logits"));
  CHECK(with([](Route& args) {
          args.logits = {nullptr, DType::f32, {0, 1025}};
        }) == "route: logits is float32 [0, 1025]; there must be 1 to 1024 experts");
  CHECK(with([](Route& args) { args.weights.shape[1] = 7; }) ==
        "route: weights is float32 [4, 7]; it must be [rows, k] with k from 1 to 6, the number of "
        "experts");
  CHECK(with([](Route& args) { args.weights.shape[0] = 3; }).starts_with("route: weights"));
  CHECK(
      with([](Route& args) { args.expert_start.shape[0] = 6; }).starts_with("route: expert_start"));
  CHECK(with([](Route& args) {
          args.source_rows.dtype = DType::f32;
        }).starts_with("route: source_rows"));
  CHECK(with([](Route& args) { args.entries.data = nullptr; }).starts_with("route: entries"));
}

}  // namespace
}  // namespace nvllm::kernels
