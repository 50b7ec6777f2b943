// Compares SparseMoe, on one rank and on several, with a reference in double that reads the weights
// by their checkpoint names. On CPUs it also checks that a row's result does not depend on the
// other rows, and that experts that no row selected are not read.
#include "layers/sparse_moe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "layers/testing/layer_rank.h"

namespace nvllm::layers {
namespace {

struct MoeShape {
  std::int64_t rows, experts, per_token, hidden, intermediate;
  bool renormalize;

  std::string describe() const {
    return str(rows, " rows, ", per_token, " of ", experts, " experts, ", hidden, " by ",
               intermediate, renormalize ? ", renormalized" : "");
  }
};

std::string expert_name(std::int64_t expert, const char* part) {
  return str("test.experts.", expert, ".", part);
}

SparseMoeConfig config_of(const MoeShape& shape, bool expert_parallel) {
  SparseMoeConfig config{.router = "test.router",
                         .experts = {},
                         .hidden = shape.hidden,
                         .intermediate = shape.intermediate,
                         .experts_per_token = shape.per_token,
                         .renormalize = shape.renormalize,
                         .expert_parallel = expert_parallel};
  for (std::int64_t expert = 0; expert < shape.experts; ++expert) {
    config.experts.push_back({.gate = expert_name(expert, "gate"),
                              .up = expert_name(expert, "up"),
                              .down = expert_name(expert, "down")});
  }
  return config;
}

double rounded(float value, DType dtype) {
  return dtype == DType::f32 ? value : to_float(from_float<Bf16>(value));
}

// A weight as LayerRank::bind_all() fills it.
class Weight {
 public:
  Weight(const std::string& module, std::int64_t columns, DType dtype)
      : name_(module + ".weight"), columns_(columns), dtype_(dtype) {}

  double at(std::int64_t row, std::int64_t column) const {
    const float width = std::sqrt(3.0f / static_cast<float>(columns_));
    return rounded(noise(name_, row * columns_ + column, width), dtype_);
  }
  std::vector<double> times(const std::vector<double>& x, std::int64_t outputs) const {
    std::vector<double> out(static_cast<std::size_t>(outputs));
    for (std::int64_t o = 0; o < outputs; ++o) {
      for (std::int64_t i = 0; i < columns_; ++i) {
        out[static_cast<std::size_t>(o)] += at(o, i) * x[static_cast<std::size_t>(i)];
      }
    }
    return out;
  }

 private:
  std::string name_;
  std::int64_t columns_;
  DType dtype_;
};

// A row's selected experts, best first, and the margin between the last one and the next.
struct Choice {
  std::vector<std::int64_t> experts;
  std::vector<double> weights;
  double margin = std::numeric_limits<double>::infinity();
};

Choice choose(const MoeShape& shape, const std::vector<double>& x, DType dtype) {
  const auto logits = Weight("test.router", shape.hidden, dtype).times(x, shape.experts);
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
  Choice choice;
  double all = 0, chosen = 0;
  for (const double logit : logits) all += std::exp(logit);
  for (std::int64_t j = 0; j < shape.per_token; ++j) {
    choice.experts.push_back(order[j]);
    choice.weights.push_back(std::exp(logits[order[j]]));
    chosen += choice.weights.back();
  }
  for (double& weight : choice.weights) weight /= shape.renormalize ? chosen : all;
  if (shape.per_token < shape.experts) {
    choice.margin = logits[order[shape.per_token - 1]] - logits[order[shape.per_token]];
  }
  return choice;
}

// The experts' contribution to a row whose norm is x.
std::vector<double> reference(const MoeShape& shape, const Choice& choice,
                              const std::vector<double>& x, DType dtype) {
  std::vector<double> sum(static_cast<std::size_t>(shape.hidden));
  for (std::size_t j = 0; j < choice.experts.size(); ++j) {
    const std::int64_t expert = choice.experts[j];
    const auto gate =
        Weight(expert_name(expert, "gate"), shape.hidden, dtype).times(x, shape.intermediate);
    auto inner =
        Weight(expert_name(expert, "up"), shape.hidden, dtype).times(x, shape.intermediate);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] *= gate[i] / (1 + std::exp(-gate[i]));
    const auto out =
        Weight(expert_name(expert, "down"), shape.intermediate, dtype).times(inner, shape.hidden);
    for (std::size_t i = 0; i < out.size(); ++i) sum[i] += choice.weights[j] * out[i];
  }
  return sum;
}

// The stream before and after, and its norm.
struct Result {
  std::vector<float> before, normed, after;
};

// One rank's layer, and runs of it.
class Layer {
 public:
  Layer(LayerRank& rank, const MoeShape& shape, DType dtype, Shard shard, const Context& context,
        bool expert_parallel = false)
      : rank_(rank),
        shape_(shape),
        dtype_(dtype),
        context_(context),
        norm_("norm", "test.norm", shape.hidden, 1e-6f),
        moe_("moe", config_of(shape, expert_parallel), shard) {
    rank.bind(norm_, dtype);
    moe_.declare(parameters_);
    rank.bind_all(parameters_, dtype);
  }

  // Runs rows [begin, begin + count) of the same stream.
  Result run(std::int64_t begin, std::int64_t count) {
    const std::vector<float> all =
        rank_.values(rank_.noise_tensor("stream", dtype_, shape_.rows, shape_.hidden));
    const auto first = all.begin() + begin * shape_.hidden;
    Result result{.before = {first, first + count * shape_.hidden}, .normed = {}, .after = {}};
    ResidualStream stream{.hidden = rank_.tensor(result.before, dtype_, count, shape_.hidden),
                          .normed = rank_.empty(dtype_, count, shape_.hidden),
                          .partial = rank_.empty(dtype_, count, shape_.hidden)};
    result.normed = rank_.values(read_normed(stream, norm_, context_));
    moe_.forward(stream, norm_, context_);
    result.after = rank_.values(complete_hidden(stream, norm_, context_));
    return result;
  }

  // Makes the weights of some experts NaN. (The CPU's memory is the host's.)
  void poison(const std::set<std::int64_t>& experts) {
    for (Parameter* parameter : parameters_) {
      if (parameter->name == "moe.router.weight") continue;
      for (const Slice& slice : parameter->slices) {
        const bool poisoned = std::ranges::any_of(experts, [&](std::int64_t expert) {
          return slice.tensor.starts_with(expert_name(expert, ""));
        });
        const TensorView part = parameter->view.rows(slice.to_row, slice.rows.size());
        if (poisoned) std::fill_n(part.as<float>(), part.elements(), std::nanf(""));
      }
    }
  }

 private:
  LayerRank& rank_;
  MoeShape shape_;
  DType dtype_;
  Context context_;
  RmsNorm norm_;
  SparseMoe moe_;
  std::vector<Parameter*> parameters_;
};

std::vector<double> row_of(const std::vector<float>& values, std::int64_t row,
                           std::int64_t columns) {
  return {values.begin() + row * columns, values.begin() + (row + 1) * columns};
}

// "" or what is wrong with a result. Rows whose selection of experts depends on rounding are
// skipped.
std::string compare(const MoeShape& shape, const Result& result, DType dtype) {
  const double min_margin = dtype == DType::f32 ? 1e-4 : 2e-2;
  const double tolerance = dtype == DType::f32 ? 2e-5 : 3e-2;
  double largest = 1;
  for (const float value : result.after) largest = std::max<double>(largest, std::fabs(value));
  std::int64_t compared = 0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::vector<double> x = row_of(result.normed, row, shape.hidden);
    const Choice choice = choose(shape, x, dtype);
    if (choice.margin < min_margin) continue;
    ++compared;
    const std::vector<double> right = reference(shape, choice, x, dtype);
    for (std::int64_t column = 0; column < shape.hidden; ++column) {
      const auto at = static_cast<std::size_t>(row * shape.hidden + column);
      const double wanted = result.before[at] + right[static_cast<std::size_t>(column)];
      if (std::fabs(result.after[at] - wanted) <= tolerance * largest) continue;
      return str("row ", row, " column ", column, " is ", result.after[at], ", not ", wanted);
    }
  }
  return compared * 2 >= shape.rows ? "" : str(compared, " rows compared of ", shape.rows);
}

std::vector<MoeShape> shapes() {
  std::vector<MoeShape> all = {{5, 8, 2, 64, 48, true},   {1, 16, 4, 40, 32, false},
                               {40, 3, 1, 24, 161, true}, {7, 4, 4, 72, 2, false},
                               {20, 1, 1, 16, 8, false},  {19, 128, 8, 16, 8, true}};
  std::mt19937 random(21);
  for (int i = 0; i < 6; ++i) {
    const auto experts = static_cast<std::int64_t>(1 + random() % 12);
    all.push_back({static_cast<std::int64_t>(1 + random() % 24), experts,
                   static_cast<std::int64_t>(1 + random() % std::min<std::int64_t>(experts, 5)),
                   static_cast<std::int64_t>(8 + random() % 60),
                   static_cast<std::int64_t>(1 + random() % 70), random() % 2 == 0});
  }
  return all;
}

TEST_CASE("a mixture, whole and over ranks, is what its definition says") {
  on_groups([](LayerRank& rank) {
    for (const MoeShape& shape : shapes()) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::string name = str(shape.describe(), " ", name_of(dtype));
        CAPTURE(name);
        Layer whole(rank, shape, dtype, {0, 1}, rank.alone());
        CHECK(compare(shape, whole.run(0, shape.rows), dtype) == "");
        Layer part(rank, shape, dtype, rank.shard(), rank.together());
        CHECK(compare(shape, part.run(0, shape.rows), dtype) == "");
        Layer some(rank, shape, dtype, rank.shard(), rank.together(), /*expert_parallel=*/true);
        CHECK(compare(shape, some.run(0, shape.rows), dtype) == "");
      }
    }
  });
}

TEST_CASE("a row's result does not depend on its company") {
  if (testing::device_under_test() != DeviceKind::cpu) {
    SKIP_TEST("on GPUs the number of rows decides which kernels compute a layer");
  }
  static constexpr MoeShape kShape{16, 8, 3, 64, 48, true};
  testing::run_on_devices(1, [](testing::DeviceRank& device) {
    LayerRank rank(device);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Layer layer(rank, kShape, dtype, {0, 1}, rank.alone());
      const std::vector<float> together = layer.run(0, kShape.rows).after;
      for (const std::int64_t count : {1, 2, 5}) {
        for (std::int64_t row = 0; row + count <= kShape.rows; row += count) {
          const auto first = together.begin() + row * kShape.hidden;
          const std::vector<float> expected(first, first + count * kShape.hidden);
          const bool same = layer.run(row, count).after == expected;
          CHECK(same);
        }
      }
    }
  });
}

TEST_CASE("experts that no row has chosen are not read") {
  if (testing::device_under_test() != DeviceKind::cpu) SKIP_TEST("writes weights on the host");
  static constexpr MoeShape kShape{3, 20, 2, 32, 24, false};
  testing::run_on_devices(1, [](testing::DeviceRank& device) {
    LayerRank rank(device);
    Layer layer(rank, kShape, DType::f32, {0, 1}, rank.alone());
    const Result before = layer.run(0, kShape.rows);
    std::set<std::int64_t> unused;
    for (std::int64_t expert = 0; expert < kShape.experts; ++expert) unused.insert(expert);
    for (std::int64_t row = 0; row < kShape.rows; ++row) {
      const auto x = row_of(before.normed, row, kShape.hidden);
      for (const std::int64_t expert : choose(kShape, x, DType::f32).experts) unused.erase(expert);
    }
    CHECK(unused.size() >= 14);
    layer.poison(unused);
    CHECK(layer.run(0, kShape.rows).after == before.after);
    // A poisoned expert that is read does change the result.
    const auto x = row_of(before.normed, 1, kShape.hidden);
    layer.poison({choose(kShape, x, DType::f32).experts[1]});
    CHECK(std::isnan(layer.run(0, kShape.rows).after[static_cast<std::size_t>(kShape.hidden)]));
  });
}

}  // namespace
}  // namespace nvllm::layers
