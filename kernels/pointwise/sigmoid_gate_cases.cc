// Gates of attention's results against their plain definition.
#include <functional>

#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;

TEST_CASE_TEMPLATE("sigmoid_gate is what its definition says, for all shapes", T, float, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  constexpr std::int64_t kShapes[][2] = {{0, 8}, {3, 0}, {1, 1}, {5, 64}, {7, 13}, {300, 130}};
  for (const auto& shape : kShapes) {
    const std::int64_t rows = shape[0], columns = shape[1];
    CAPTURE(rows);
    CAPTURE(columns);
    std::vector<T> right = testing::normal_values<T>(rows * columns, 3, 0, 2);
    std::vector<T> gates = testing::normal_values<T>(rows * columns, 4, 0, 4);
    Placed<T> x(*backend, *stream, right, 1), gate(*backend, *stream, gates, 1);
    sigmoid_gate({.x = x.view({rows, columns}), .gate = gate.view({rows, columns})}, *stream);
    sigmoid_gate_reference({.x = {right.data(), dtype_of<T>, {rows, columns}},
                            .gate = {gates.data(), dtype_of<T>, {rows, columns}}});
    int wrong = 0;
    const std::vector<T> got = x.fetch();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float off = 8 * 0x1p-24f * std::fabs(to_float(right[i]));
      wrong += !testing::near(got[i], right[i], off);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("sigmoid_gate refuses what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Placed<float> floats(*backend, *stream, std::vector<float>(64));
  stream->synchronize();
  const auto with = [&](const std::function<void(SigmoidGate&)>& change) {
    SigmoidGate args{.x = {floats.data(), DType::f32, {2, 6}},
                     .gate = {floats.data() + 32, DType::f32, {2, 6}}};
    change(args);
    return refusal(*backend, [&](Stream& stream) { sigmoid_gate(args, stream); });
  };
  CHECK(with([](SigmoidGate&) {}) == "");
  CHECK(with([](SigmoidGate& args) { args.x.dtype = DType::i32; }).starts_with("sigmoid_gate: x"));
  CHECK(with([](SigmoidGate& args) { args.gate.shape[1] = 5; }).starts_with("sigmoid_gate: gate"));
}

}  // namespace
}  // namespace nvllm::kernels
