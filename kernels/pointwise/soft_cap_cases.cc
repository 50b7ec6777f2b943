// Capped logits against their plain definition.
#include <functional>

#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;

// Rows lie `stride` elements apart, the first one `shift` elements from an aligned address.
void check_against_reference(Backend& backend, std::int64_t rows, std::int64_t columns,
                             std::int64_t stride, float cap, std::int64_t shift) {
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(cap);
  CAPTURE(shift);
  const auto stream = backend.create_stream();
  std::vector<float> right = testing::normal_values<float>(rows * stride, 3, 0, 25);
  if (right.size() > 3) right[0] = 1e30f, right[1] = -1e30f, right[2] = 0;
  Placed<float> x(backend, *stream, right, shift);
  const auto view = [&](TensorView whole) {
    whole.shape[1] = columns;  // rows stay where they are
    return SoftCap{.x = whole, .cap = cap};
  };
  soft_cap(view(x.view({rows, stride})), *stream);
  soft_cap_reference(view({right.data(), DType::f32, {rows, stride}}));
  int wrong = 0;
  const std::vector<float> got = x.fetch();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool between = static_cast<std::int64_t>(i) % stride >= columns;
    wrong += !(std::fabs(got[i] - right[i]) <= (between ? 0 : 0x1p-21f * cap));
  }
  CHECK(wrong == 0);
}

TEST_CASE("soft_cap is what its definition says, and leaves what is between rows") {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][3] = {{0, 8, 8},   {3, 0, 4},        {1, 1, 1},  {5, 64, 70},
                                         {7, 13, 13}, {30, 1000, 1024}, {5, 64, 64}};
  for (const auto& shape : kShapes) {
    for (const float cap : {30.0f, 2.5f}) {
      for (const std::int64_t shift : {0, 1}) {
        check_against_reference(*backend, shape[0], shape[1], shape[2], cap, shift);
      }
    }
  }
}

TEST_CASE("soft_cap keeps NaN") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Placed<float> x(*backend, *stream, std::vector<float>(9, testing::kNan), 0);
  soft_cap({.x = x.view({1, 9}), .cap = 30}, *stream);
  for (const float value : x.fetch()) CHECK(std::isnan(value));
}

TEST_CASE("soft_cap refuses what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Placed<float> floats(*backend, *stream, std::vector<float>(64));
  stream->synchronize();
  const auto with = [&](const std::function<void(SoftCap&)>& change) {
    SoftCap args{.x = {floats.data(), DType::f32, {2, 6}}, .cap = 30};
    change(args);
    return refusal(*backend, [&](Stream& stream) { soft_cap(args, stream); });
  };
  CHECK(with([](SoftCap&) {}) == "");
  CHECK(with([](SoftCap& args) { args.x.dtype = DType::bf16; }).starts_with("soft_cap: x"));
  CHECK(with([](SoftCap& args) { args.x.stride[0] = 5; }).starts_with("soft_cap: x"));
  CHECK(with([](SoftCap& args) { args.cap = 0; }).starts_with("soft_cap: cap"));
}

}  // namespace
}  // namespace nvllm::kernels
