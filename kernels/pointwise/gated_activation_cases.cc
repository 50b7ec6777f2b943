// Gated activations against their plain definition, on whichever backend is linked.
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"
#include "testing/golden.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;

constexpr Activation kAll[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                               Activation::clamped_swiglu};
constexpr float kLimit = 7;  // of clamped_swiglu

// How far activation(g) may be off in float32, relative to itself. Roundings count 2^-24 each,
// those of an exponential's argument as often as the argument is large (beyond 88 nothing is left);
// the GPU's quick exponential, taken for 16-bit types, is off by 2.3 of them times the argument.
float relative_error(Activation activation, float g) {
  const float roundings = [&] {
    switch (activation) {
      case Activation::silu: return 8 + 2.5f * std::fabs(g);
      case Activation::gelu: return 16.0f;
      case Activation::clamped_swiglu: return 8 + 5 * std::fabs(g);
      default: return 8 + 6.5f * std::fabs(1.6f * (g + 0.0447f * g * g * g));
    }
  }();
  return std::min(roundings, 16 + 7 * 90.0f) * 0x1p-24f;
}

// Activations smaller than this may be 0: the exponential has overflown, or is more than 2^126,
// where the GPU's quick quotient ends.
constexpr float kNothing = 1.1e-36f;

template <typename T>
int count_wrong(Activation activation, const std::vector<T>& x, std::int64_t n,
                const std::vector<T>& got, const std::vector<T>& right) {
  int wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t gate = i / n * 2 * n + i % n;
    float g = to_float(x[gate]), up = to_float(x[gate + n]);
    if (activation == Activation::clamped_swiglu) {
      if (g > kLimit) g = kLimit;
      if (std::fabs(up) > kLimit) up = std::copysign(kLimit, up);
      up += 1;
    }
    // Infinity times what may have become 0, or not, may be NaN, or not.
    const bool vanishes = std::isfinite(g) && (g < -80 || std::fabs(g) < kNothing);
    if (std::isinf(up) && vanishes) continue;
    const float off =
        std::isfinite(g) && std::isfinite(up)
            ? std::fabs(to_float(right[i])) * (relative_error(activation, g) + 0x1p-24f) +
                  kNothing * std::fabs(up)
            : 0.0f;
    wrong += !testing::near(got[i], right[i], off);
  }
  return wrong;
}

template <typename T>
void check_against_reference(Backend& backend, Activation activation, std::vector<T> x,
                             std::int64_t rows, std::int64_t n, std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  Placed<T> x_there(backend, *stream, x, shift);
  Placed<T> out_there(backend, *stream, std::vector<T>(rows * n, from_float<T>(-77)), shift);
  gated_activation({out_there.view({rows, n}), x_there.view({rows, 2 * n}), activation, kLimit},
                   *stream);
  std::vector<T> right(rows * n);
  gated_activation_reference({{right.data(), dtype_of<T>, {rows, n}},
                              {x.data(), dtype_of<T>, {rows, 2 * n}},
                              activation,
                              kLimit});
  CHECK(count_wrong(activation, x, n, out_there.fetch(), right) == 0);
  CHECK(testing::same_bits(x_there.fetch(), x));
}

TEST_CASE_TEMPLATE("gated_activation is what its definition says, for all shapes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {0, 5},   {5, 0},    {1, 1},    {3, 7},     {1, 8},    {2, 9},
      {7, 255}, {50, 800}, {1, 3072}, {2, 12288}, {300, 16}, {1, 40'001}};
  std::mt19937 random(5);
  for (int i = 0; i < 5; ++i) shapes.emplace_back(1 + random() % 40, 1 + random() % 2000);
  for (const Activation activation : kAll) {
    for (const auto& shape : shapes) {
      for (const std::int64_t shift : {0, 1}) {
        const std::int64_t rows = shape.first, n = shape.second;
        const std::string name = name_of(activation);
        CAPTURE(name);
        CAPTURE(rows);
        CAPTURE(n);
        CAPTURE(shift);
        check_against_reference(*backend, activation,
                                testing::normal_values<T>(rows * 2 * n, random(), 0, 3), rows, n,
                                shift);
      }
    }
  }
}

TEST_CASE_TEMPLATE("gates from nothing to where every activation is 0 or the gate itself", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kGates = 20'001;
  constexpr std::int64_t kMiddle = kGates / 2;
  std::vector<T> x;
  for (std::int64_t i = 0; i < kGates; ++i) {
    x.push_back(from_float<T>(static_cast<float>(i - kMiddle) * 0.01f));
  }
  for (std::int64_t i = 0; i < kGates; ++i) x.push_back(from_float<T>(1.0f));
  for (const Activation activation : kAll) {
    const std::string name = name_of(activation);
    CAPTURE(name);
    check_against_reference(*backend, activation, x, 1, kGates);
  }
}

TEST_CASE_TEMPLATE("gated_activation: infinite, huge, tiny values and NaN do as the definition", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::vector<float> values = {testing::kInfinity,
                               testing::kNan,
                               testing::Limits<T>::kMax,
                               1e30f,
                               60000.0f,
                               100.0f,
                               88.5f,
                               1e-3f,
                               1e-20f,
                               testing::Limits<T>::kMin,
                               0.0f};
  for (int i = 0; i < 11; ++i) values.push_back(-values[i]);
  std::vector<T> x;
  for (const float gate : values) x.insert(x.end(), values.size(), from_float<T>(gate));
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const float up : values) x.push_back(from_float<T>(up));
  }
  for (const Activation activation : kAll) {
    const std::string name = name_of(activation);
    CAPTURE(name);
    check_against_reference(*backend, activation, x, 1,
                            static_cast<std::int64_t>(values.size() * values.size()));
  }
}

TEST_CASE("the activations are those of their names") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Placed<float> x(*backend, *stream, {1.0f, -2.0f, 1.0f, 1.0f});
  Placed<float> out(*backend, *stream, {0.0f, 0.0f});
  const auto results = [&](Activation activation) {
    gated_activation({out.view({1, 2}), x.view({1, 4}), activation}, *stream);
    return out.fetch();
  };
  // From the formulas, to nine digits.
  CHECK(results(Activation::silu)[0] == doctest::Approx(0.731058579).epsilon(1e-6));
  CHECK(results(Activation::silu)[1] == doctest::Approx(-0.238405844).epsilon(1e-6));
  CHECK(results(Activation::gelu)[0] == doctest::Approx(0.841344746).epsilon(1e-6));
  CHECK(results(Activation::gelu)[1] == doctest::Approx(-0.0455002639).epsilon(1e-6));
  CHECK(results(Activation::gelu_tanh)[0] == doctest::Approx(0.841191991).epsilon(1e-6));
  CHECK(results(Activation::gelu_tanh)[1] == doctest::Approx(-0.0454023059).epsilon(1e-6));
}

TEST_CASE("golden: SiLU and gating") {
  BACKEND_OR_SKIP(backend);
  const auto golden = nvllm::testing::read_golden("tests/data/golden-layers/layers.safetensors");
  const auto& wanted_here = golden.at("silu_and_mul.x");
  const auto& right = golden.at("silu_and_mul.out");
  const std::int64_t rows = right.shape[0], n = right.shape[1];
  const auto stream = backend->create_stream();
  Placed<float> x(*backend, *stream, wanted_here.values);
  Placed<float> out(*backend, *stream, std::vector<float>(right.values.size()));
  gated_activation({out.view({rows, n}), x.view({rows, 2 * n})}, *stream);
  CHECK(count_wrong(Activation::silu, wanted_here.values, n, out.fetch(), right.values) == 0);
}

TEST_CASE("gated_activation runs in graphs") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Placed<float> x(*backend, *stream, {0.0f, 40.0f, 3.0f, 2.0f});
  Placed<float> out(*backend, *stream, {-1.0f, -1.0f});
  const auto graph = backend->capture(*stream, [&] {
    gated_activation({out.view({1, 2}), x.view({1, 4})}, *stream);
  });
  CHECK(out.fetch()[1] == -1.0f);
  graph->launch(*stream);
  CHECK(testing::same_bits(out.fetch(), {0.0f, 80.0f}));
}

TEST_CASE("gated_activation refuses arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), type, shape);
  };
  const GatedActivation good{.out = tensor(DType::bf16, {2, 8}), .x = tensor(DType::bf16, {2, 16})};
  const auto why = [&](const auto& spoil) {
    GatedActivation bad = good;
    spoil(bad);
    return refusal(*backend, [&](Stream& stream) { gated_activation(bad, stream); });
  };
  CHECK(why([](GatedActivation&) {}) == "");
  CHECK(why([&](GatedActivation& bad) {
          bad.out = tensor(DType::i32, {2, 8});
        }) == "gated_activation: out is int32 [2, 8]; it must be float32, bfloat16 or float16");
  CHECK(why([&](GatedActivation& bad) { bad.out = tensor(DType::bf16, {16}); }) ==
        "gated_activation: out is bfloat16 [16]; it must be [rows, n]");
  CHECK(why([&](GatedActivation& bad) {
          bad.x = tensor(DType::bf16, {2, 15});
        }) == "gated_activation: x is bfloat16 [2, 15]; it must be bfloat16 [2, 16]");
  CHECK(why([&](GatedActivation& bad) {
          bad.x = tensor(DType::f32, {2, 16});
        }) == "gated_activation: x is float32 [2, 16]; it must be bfloat16 [2, 16]");
  CHECK(why([](GatedActivation& bad) {
          bad.x.stride[0] = 24;
        }).find("gated_activation: x is bfloat16 [2, 16] with strides [24, 1]") == 0);
  CHECK(why([](GatedActivation& bad) {
          bad.out.stride[1] = 2;
        }).find("gated_activation: out is ") == 0);
  CHECK(why([](GatedActivation& bad) {
          bad.out.data = bad.out.as<char>() + 1;
        }).find("gated_activation: out lies at ") == 0);
  CHECK(why([](GatedActivation& bad) { bad.x.data = nullptr; }) ==
        "gated_activation: x, bfloat16 [2, 16], has no memory");
  CHECK(why([](GatedActivation& bad) { bad.activation = static_cast<Activation>(9); }) ==
        "gated_activation: activation 9 is none");
}

}  // namespace
}  // namespace nvllm::kernels
