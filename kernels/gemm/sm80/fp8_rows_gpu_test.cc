// Rows in fp8, by each kernel that makes them, have the bits that their definition says.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "device/e4m3.h"
#include "kernels/gemm/sm80/entry_points.h"
#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

// Memory for rows in fp8: words of values, then scales of `rows + 2` rows.
class Fp8Memory {
 public:
  Fp8Memory(Backend& backend, Stream& stream, std::int64_t rows, std::int64_t inputs)
      : rows_(rows),
        inputs_(inputs),
        words_(backend, stream,
               std::vector<std::int32_t>(
                   static_cast<std::size_t>(rows * inputs / 4 + inputs / kFp8Group * stride()))) {}

  cuda::Fp8Rows there() {
    auto* const values = reinterpret_cast<std::byte*>(words_.data());
    return {values, reinterpret_cast<float*>(values + rows_ * inputs_), stride()};
  }
  std::int64_t stride() const { return rows_ + 2; }
  std::vector<std::int32_t> fetch() { return words_.fetch(); }

 private:
  std::int64_t rows_, inputs_;
  Placed<std::int32_t> words_;
};

// The same words, of rows of 16-bit floats.
std::vector<std::int32_t> quantized(const TensorView& x, std::int64_t scale_stride) {
  const std::int64_t rows = x.shape[0], inputs = x.shape[1];
  std::vector<std::int32_t> words(
      static_cast<std::size_t>(rows * inputs / 4 + inputs / kFp8Group * scale_stride));
  auto* const bytes = reinterpret_cast<std::uint8_t*>(words.data());
  auto* const scales = reinterpret_cast<float*>(bytes + rows * inputs);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t group = 0; group < inputs / kFp8Group; ++group) {
      float largest = 0;
      const auto input = [&](std::int64_t i) { return get(x, row, group * kFp8Group + i); };
      for (std::int64_t i = 0; i < kFp8Group; ++i)
        largest = std::fmax(largest, std::fabs(input(i)));
      scales[group * scale_stride + row] = largest / kMaxFp8;
      const float inverse = largest > 0 ? kMaxFp8 / largest : 0.0f;
      std::uint8_t* const to = bytes + row * inputs + group * kFp8Group;
      for (std::int64_t at = 0; at < kFp8Group; ++at) {  // see quantized_weight.h
        const std::int64_t thread = at % 64 / 16, word = at % 16 / 4, byte = at % 4;
        const std::int64_t i = at / 64 * 64 + 16 * word + 2 * thread + byte % 2 + byte / 2 * 8;
        to[at] = from_float<E4m3>(input(i) * inverse).bits;
      }
    }
  }
  return words;
}

struct Rows {
  std::int64_t rows, inputs;
};
// Few rows and many, groups that are half of a warp's, rows of several warps and of several vectors
// of a thread.
constexpr Rows kShapes[] = {{1, 128},   {3, 384},    {17, 1024},  {64, 2560},
                            {100, 896}, {200, 9728}, {40, 16384}, {700, 4096}};

TEST_CASE_TEMPLATE("rows become fp8 by their definition", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  const auto stream = backend->create_stream();
  std::mt19937 random(31);
  for (const Rows& shape : kShapes) {
    // Rows that lie apart, and rows of single elements.
    for (const std::int64_t gap : {0, 8, 3}) {
      CAPTURE(shape.rows);
      CAPTURE(shape.inputs);
      CAPTURE(gap);
      Matrix x(*backend, dtype_of<T>, shape.rows, shape.inputs, gap);
      x.fill(random, 0, 1);
      for (std::int64_t i = 0; i < kFp8Group; ++i) put(x.here, shape.rows - 1, i, 0);  // no scale
      x.upload(*stream);
      Fp8Memory got(*backend, *stream, shape.rows, shape.inputs);
      cuda::quantize_rows(x.there, got.there(), *stream, false);
      CHECK(got.fetch() == quantized(x.here, got.stride()));
    }
  }
}

TEST_CASE_TEMPLATE("a norm leaves the fp8 of what it makes", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  const auto stream = backend->create_stream();
  std::mt19937 random(32);
  for (const Rows& shape : kShapes) {
    CAPTURE(shape.rows);
    CAPTURE(shape.inputs);
    Matrix x(*backend, dtype_of<T>, shape.rows, shape.inputs);
    Matrix weight(*backend, dtype_of<T>, 1, shape.inputs);
    Matrix normed(*backend, dtype_of<T>, shape.rows, shape.inputs);
    x.fill(random, 0, 3);
    weight.fill(random, 1, 0.5f);
    x.upload(*stream);
    weight.upload(*stream);
    RmsNorm norm;
    norm.out = normed.there, norm.x = x.there, norm.weight = vector_of(weight.there);
    norm.weight_offset = shape.rows % 2 == 0 ? 1.0f : 0.0f;
    REQUIRE(cuda::makes_fp8_rows(norm));
    rms_norm(norm, *stream);
    normed.fetch(*stream);
    norm.out = {};
    Fp8Memory got(*backend, *stream, shape.rows, shape.inputs);
    cuda::quantize_normed_rows(norm, got.there(), *stream, false);
    CHECK(got.fetch() == quantized(normed.here, got.stride()));
  }
}

TEST_CASE_TEMPLATE("a gated activation leaves the fp8 of what it makes", T, HALF_TYPES) {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  const auto stream = backend->create_stream();
  std::mt19937 random(33);
  for (const Rows& shape : kShapes) {
    for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
      CAPTURE(shape.rows);
      CAPTURE(shape.inputs);
      CAPTURE(name_of(kind));
      Matrix x(*backend, dtype_of<T>, shape.rows, 2 * shape.inputs);
      Matrix activated(*backend, dtype_of<T>, shape.rows, shape.inputs);
      x.fill(random, 0, 2);
      x.upload(*stream);
      GatedActivation activation{activated.there, x.there, kind};
      REQUIRE(cuda::makes_fp8_rows(activation));
      gated_activation(activation, *stream);
      activated.fetch(*stream);
      activation.out = {};
      Fp8Memory got(*backend, *stream, shape.rows, shape.inputs);
      cuda::quantize_activated_rows(activation, got.there(), *stream, false);
      CHECK(got.fetch() == quantized(activated.here, got.stride()));
    }
  }
}

TEST_CASE("what has no whole groups or vectors is not made fp8 by its producer") {
  RmsNorm norm;
  norm.x = TensorView(nullptr, DType::bf16, {4, 256});
  norm.weight = TensorView(nullptr, DType::bf16, {256});
  CHECK(cuda::makes_fp8_rows(norm));
  norm.x.shape[1] = 192;
  CHECK_FALSE(cuda::makes_fp8_rows(norm));
  norm.x.shape[1] = 65536;
  CHECK_FALSE(cuda::makes_fp8_rows(norm));
  norm.x = TensorView(nullptr, DType::f32, {4, 256});
  CHECK_FALSE(cuda::makes_fp8_rows(norm));
  GatedActivation activation;
  activation.x = TensorView(nullptr, DType::bf16, {4, 256});
  CHECK(cuda::makes_fp8_rows(activation));
  activation.activation = Activation::clamped_swiglu;
  CHECK_FALSE(cuda::makes_fp8_rows(activation));
  activation = {};
  activation.x = TensorView(nullptr, DType::bf16, {4, 128});
  CHECK_FALSE(cuda::makes_fp8_rows(activation));
}

}  // namespace
}  // namespace nvllm::kernels::testing
