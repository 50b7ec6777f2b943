// Bias against its plain definition, on whichever backend is linked.
#include "kernels/pointwise/activation.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;
using testing::same_bits;

// Bits are compared, so what kind of NaN comes of what is left open by giving only quiet, positive
// ones.
template <typename T>
void check_against_reference(Backend& backend, std::vector<T> x, std::vector<T> bias,
                             std::int64_t rows, std::int64_t shift = 0) {
  const auto columns = static_cast<std::int64_t>(bias.size());
  const auto stream = backend.create_stream();
  Placed<T> x_there(backend, *stream, x, shift);
  Placed<T> bias_there(backend, *stream, bias, shift);
  add_bias({.x = x_there.view({rows, columns}), .bias = bias_there.view({columns})}, *stream);
  add_bias_reference({.x = {x.data(), dtype_of<T>, {rows, columns}},
                      .bias = {bias.data(), dtype_of<T>, {columns}}});
  const std::vector<T> got = x_there.fetch();
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool nan = std::isnan(to_float(x[i]));
    wrong += nan ? !std::isnan(to_float(got[i])) : !same_bits<T>({got[i]}, {x[i]});
  }
  CHECK(wrong == 0);
  CHECK(same_bits(bias_there.fetch(), bias));
}

TEST_CASE_TEMPLATE("add_bias rounds the sum once, for all shapes", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][2] = {{0, 5},    {5, 0},    {1, 1},      {3, 7},    {1, 4096},
                                         {70, 513}, {300, 64}, {2, 10'000}, {1000, 9}, {9, 8192}};
  for (const auto& shape : kShapes) {
    for (const std::int64_t shift : {0, 1}) {
      const std::int64_t rows = shape[0], columns = shape[1];
      CAPTURE(rows);
      CAPTURE(columns);
      CAPTURE(shift);
      check_against_reference(*backend, testing::normal_values<T>(rows * columns, 1),
                              testing::normal_values<T>(columns, 2, 0, 5), rows, shift);
    }
  }
}

TEST_CASE_TEMPLATE("add_bias: infinite, huge, tiny values and NaN do as the definition", T, float,
                   Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  std::vector<T> values;
  for (const float value :
       {testing::kInfinity, -testing::kInfinity, testing::kNan, testing::Limits<T>::kMax,
        -testing::Limits<T>::kMax, testing::Limits<T>::kMin, -testing::Limits<T>::kMin, 0.0f, -0.0f,
        1.0f, -1.0f, 3e-5f, 1e-30f}) {
    values.push_back(from_float<T>(value));
  }
  std::vector<T> x, bias;
  for (const T a : values) {
    for (const T b : values) x.push_back(a), bias.push_back(b);
  }
  check_against_reference(*backend, x, bias, 1);
}

TEST_CASE("add_bias runs in graphs, each launch adding once more") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Placed<float> x(*backend, *stream, std::vector<float>(300, 1.0f));
  Placed<float> bias(*backend, *stream, std::vector<float>(100, 0.5f));
  const auto graph = backend->capture(*stream, [&] {
    add_bias({.x = x.view({3, 100}), .bias = bias.view({100})}, *stream);
  });
  CHECK(x.fetch()[299] == 1.0f);
  graph->launch(*stream);
  graph->launch(*stream);
  CHECK(same_bits(x.fetch(), std::vector<float>(300, 2.0f)));
}

TEST_CASE("calls in a row see what the ones before them wrote") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  for (const std::int64_t rows : {1, 700}) {
    Placed<float> x(*backend, *stream, std::vector<float>(rows * 1000, 1.0f));
    Placed<float> bias(*backend, *stream, std::vector<float>(1000, 0.5f));
    const auto graph = backend->capture(*stream, [&] {
      for (int i = 0; i < 40; ++i) {
        add_bias({.x = x.view({rows, 1000}), .bias = bias.view({1000})}, *stream);
      }
    });
    graph->launch(*stream);
    graph->launch(*stream);
    CHECK(same_bits(x.fetch(), std::vector<float>(rows * 1000, 41.0f)));
  }
}

TEST_CASE("add_bias refuses arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), type, shape);
  };
  const AddBias good{.x = tensor(DType::f16, {2, 8}), .bias = tensor(DType::f16, {8})};
  const auto why = [&](const auto& spoil) {
    AddBias bad = good;
    spoil(bad);
    return refusal(*backend, [&](Stream& stream) { add_bias(bad, stream); });
  };
  CHECK(why([](AddBias&) {}) == "");
  CHECK(why([&](AddBias& bad) {
          bad.x = tensor(DType::u8, {2, 8});
        }) == "add_bias: x is uint8 [2, 8]; it must be float32, bfloat16 or float16");
  CHECK(why([&](AddBias& bad) { bad.x = tensor(DType::f16, {16}); }) ==
        "add_bias: x is float16 [16]; it must be [rows, columns]");
  CHECK(why([](AddBias& bad) { bad.x.stride[0] = 9; }) ==
        "add_bias: x is float16 [2, 8] with strides [9, 1]; it must be dense and row-major");
  CHECK(why([&](AddBias& bad) { bad.bias = tensor(DType::f32, {8}); }) ==
        "add_bias: bias is float32 [8]; it must be float16 [8]");
  CHECK(why([&](AddBias& bad) { bad.bias = tensor(DType::f16, {9}); }) ==
        "add_bias: bias is float16 [9]; it must be float16 [8]");
  CHECK(why([](AddBias& bad) { bad.bias.stride[0] = 2; }).find("add_bias: bias is ") == 0);
  CHECK(why([](AddBias& bad) { bad.x.data = bad.x.as<char>() + 1; }).find("add_bias: x lies at ") ==
        0);
  CHECK(why([](AddBias& bad) { bad.bias.data = nullptr; }) ==
        "add_bias: bias, float16 [8], has no memory");
}

}  // namespace
}  // namespace nvllm::kernels
