// RMSNorm against its plain definition, on whichever backend is linked.
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"
#include "testing/golden.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::same_bits;

// One call: its tensors' values on the host, before or after.
template <typename T>
struct RmsnormCase {
  std::int64_t rows, columns;
  std::vector<T> x, residual, weight, out;  // residual: empty for none
  float epsilon = 1e-6f, weight_offset = 0;

  RmsnormCase(std::int64_t rows, std::int64_t columns) : rows(rows), columns(columns) {
    x.resize(rows * columns, from_float<T>(1));
    weight.resize(columns, from_float<T>(1));
  }

  static RmsnormCase random(std::int64_t rows, std::int64_t columns, bool with_residual,
                            unsigned seed) {
    RmsnormCase c(rows, columns);
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    for (T& value : c.x) value = from_float<T>(normal(bits));
    for (T& value : c.weight) value = from_float<T>(1 + 0.2f * normal(bits));
    if (with_residual) {
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        c.residual.push_back(from_float<T>(3 * normal(bits)));
      }
    }
    return c;
  }

  void run_reference() {
    out.resize(x.size());
    rms_norm_reference(args(out.data(), x.data(), residual.data(), weight.data()));
  }

  // On the backend. All tensors lie `shift` elements after an aligned address.
  void run(Backend& backend, std::int64_t shift = 0, bool in_place = false) {
    const auto stream = backend.create_stream();
    Placed x_there(backend, *stream, x, shift);
    Placed residual_there(backend, *stream, residual, shift);
    Placed weight_there(backend, *stream, weight, shift);
    out.assign(x.size(), from_float<T>(-77));
    Placed out_there(backend, *stream, out, shift);
    const RmsNorm call =
        args(in_place ? x_there.data() : out_there.data(), x_there.data(),
             residual.empty() ? nullptr : residual_there.data(), weight_there.data());
    rms_norm(call, *stream);
    out = (in_place ? x_there : out_there).fetch();
    residual = residual_there.fetch();
  }

 private:
  RmsNorm args(T* out_data, T* x_data, T* residual_data, T* weight_data) const {
    RmsNorm call;
    call.out = TensorView(out_data, dtype_of<T>, {rows, columns});
    call.x = TensorView(x_data, dtype_of<T>, {rows, columns});
    if (!residual.empty()) call.residual = TensorView(residual_data, dtype_of<T>, {rows, columns});
    call.weight = TensorView(weight_data, dtype_of<T>, {columns});
    call.epsilon = epsilon;
    call.weight_offset = weight_offset;
    return call;
  }
};

// How many results are further from the reference than rounding explains: the sum of squares is
// taken in chains of columns / 32 additions at most, whose relative error a square root halves;
// then come a few single roundings in float32 and one to T, which may fall to either side.
template <typename T>
int count_wrong(const RmsnormCase<T>& got, const RmsnormCase<T>& expected) {
  const float in_float = (static_cast<float>(got.columns) / 64 + 12) * 0x1p-24f;
  int wrong = 0;
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const float size = std::fabs(to_float(expected.out[i]));
    const float off = std::isfinite(size) ? size * in_float : 0.0f;
    wrong += !testing::near(got.out[i], expected.out[i], off);
  }
  return wrong;
}

TEST_CASE_TEMPLATE("rms_norm is what its definition says, for all shapes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(7);
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {1, 1},    {3, 2},     {1, 7},     {5, 8},     {400, 31},  {1000, 32}, {33, 33},
      {7, 255},  {7, 256},   {100, 257}, {50, 800},  {3, 2049},  {2, 4096},  {1, 8000},
      {2, 8200}, {1, 16384}, {2, 16392}, {1, 32768}, {1, 33000}, {1, 65535}, {2, 65536}};
  for (int i = 0; i < 10; ++i) {
    shapes.emplace_back(1 + random() % 40, 1 + random() % 3000);
  }
  for (const auto& shape : shapes) {
    const std::int64_t rows = shape.first, columns = shape.second;
    for (const bool with_residual : {false, true}) {
      CAPTURE(rows);
      CAPTURE(columns);
      CAPTURE(with_residual);
      RmsnormCase<T> got = RmsnormCase<T>::random(rows, columns, with_residual, random());
      RmsnormCase<T> expected = got;
      got.run(*backend);
      expected.run_reference();
      CHECK(count_wrong(got, expected) == 0);
      CHECK(same_bits(got.residual, expected.residual));
    }
  }
}

TEST_CASE_TEMPLATE("weights less 1 are taken with that 1, in float32", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t columns : {1, 7, 48, 257, 1152, 5376, 16392, 33000}) {
    for (const std::int64_t rows : {1, 3, 1000}) {
      if (rows * columns > 1000 * 1152) continue;
      CAPTURE(rows);
      CAPTURE(columns);
      RmsnormCase<T> got = RmsnormCase<T>::random(rows, columns, columns % 2 == 0, 11);
      // Small ones: 1 + w rounded to 16 bits would show.
      for (T& weight : got.weight) weight = from_float<T>((to_float(weight) - 1) * 0.1f);
      got.weight_offset = 1;
      RmsnormCase<T> expected = got;
      got.run(*backend);
      expected.run_reference();
      CHECK(count_wrong(got, expected) == 0);
    }
  }
  RmsnormCase<float> exact(1, 1);  // 1 / sqrt(1) * (1 + 3)
  exact.epsilon = 0, exact.weight = {3}, exact.weight_offset = 1;
  exact.run(*backend);
  CHECK(exact.out[0] == doctest::Approx(4));
}

TEST_CASE_TEMPLATE("the result may take the place of the input", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const bool with_residual : {false, true}) {
    RmsnormCase<T> got = RmsnormCase<T>::random(9, 1000, with_residual, 1);
    RmsnormCase<T> expected = got;
    got.run(*backend, 0, true);
    expected.run(*backend);
    CHECK(same_bits(got.out, expected.out));
  }
}

TEST_CASE_TEMPLATE("the bits depend neither on alignment nor on the other rows", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t columns : {64, 1000, 1001, 4096}) {
    CAPTURE(columns);
    RmsnormCase<T> batch = RmsnormCase<T>::random(70, columns, true, 3);
    const RmsnormCase<T> wanted_here = batch;
    RmsnormCase<T> shifted = batch;
    batch.run(*backend);
    shifted.run(*backend, 1);
    CHECK(same_bits(batch.out, shifted.out));
    CHECK(same_bits(batch.residual, shifted.residual));
    for (const std::int64_t row : {0, 1, 69}) {
      RmsnormCase<T> alone(1, columns);
      const auto begin = row * columns, end = begin + columns;
      alone.x.assign(wanted_here.x.begin() + begin, wanted_here.x.begin() + end);
      alone.residual.assign(wanted_here.residual.begin() + begin,
                            wanted_here.residual.begin() + end);
      alone.weight = wanted_here.weight;
      alone.run(*backend);
      CHECK(same_bits(alone.out, {batch.out.begin() + begin, batch.out.begin() + end}));
    }
  }
}

TEST_CASE_TEMPLATE("no rows: nothing happens", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  RmsnormCase<T> nothing(0, 100);
  nothing.run(*backend);
  CHECK(nothing.out.empty());
}

TEST_CASE_TEMPLATE("a NaN spoils its row and no other", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  RmsnormCase<T> got = RmsnormCase<T>::random(3, 500, false, 5);
  got.x[500 + 499] = from_float<T>(std::nanf(""));
  RmsnormCase<T> expected = got;
  got.run(*backend);
  expected.run_reference();
  CHECK(count_wrong(got, expected) == 0);
  int nans = 0;
  for (const T value : got.out) nans += std::isnan(to_float(value));
  CHECK(nans == 500);
}

TEST_CASE_TEMPLATE("infinite, huge and tiny values do as the definition", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const float value : {testing::kInfinity, -testing::kInfinity, 3e38f, 1e25f, 60000.0f, 1e-4f,
                            1e-7f, 1e-25f, 1e-40f, 0.0f}) {
    CAPTURE(value);
    RmsnormCase<T> got = RmsnormCase<T>::random(2, 100, false, 6);
    got.x[3] = from_float<T>(value);
    for (int i = 100; i < 200; ++i) got.x[i] = from_float<T>(i % 2 == 0 ? value : -value);
    RmsnormCase<T> expected = got;
    got.run(*backend);
    expected.run_reference();
    CHECK(count_wrong(got, expected) == 0);
  }
}

TEST_CASE("golden: RMSNorm, with and without residual") {
  BACKEND_OR_SKIP(backend);
  const auto golden = nvllm::testing::read_golden("tests/data/golden-layers/layers.safetensors");
  for (const auto& [key, epsilon] : {std::pair<std::string, float>{"rms_norm.0", 1e-6f},
                                     {"rms_norm.1", 1e-5f},
                                     {"rms_norm.2", 1e-6f}}) {
    const auto& x = golden.at(key + ".x");
    for (const bool with_residual : {false, true}) {
      RmsnormCase<float> got(x.shape[0], x.shape[1]);
      got.x = x.values;
      got.weight = golden.at(key + ".weight").values;
      got.epsilon = epsilon;
      if (with_residual) got.residual = golden.at(key + ".residual").values;
      RmsnormCase<float> right = got;
      right.out = golden.at(key + (with_residual ? ".out_with_residual" : ".out")).values;
      got.run(*backend);
      CHECK(count_wrong(got, right) == 0);
      if (with_residual) CHECK(same_bits(got.residual, golden.at(key + ".residual_out").values));
    }
  }
}

TEST_CASE("epsilon counts") {
  BACKEND_OR_SKIP(backend);
  RmsnormCase<float> c(1, 10);
  c.epsilon = 3;  // 1 / sqrt(1 + 3)
  c.run(*backend);
  CHECK(c.out[0] == doctest::Approx(0.5));
}

TEST_CASE("rms_norm runs in graphs") {
  BACKEND_OR_SKIP(backend);
  Buffer device = backend->allocate(MemoryKind::device, 3 * 256 * sizeof(float), "test");
  Buffer host = backend->allocate(MemoryKind::pinned, 3 * 256 * sizeof(float), "test");
  auto* there = static_cast<float*>(device.data());
  auto* here = static_cast<float*>(host.data());
  RmsNorm call;
  call.x = TensorView(there, DType::f32, {1, 256});
  call.weight = TensorView(there + 256, DType::f32, {256});
  call.out = TensorView(there + 512, DType::f32, {1, 256});
  const auto stream = backend->create_stream();
  const auto graph = backend->capture(*stream, [&] {
    backend->copy(there, here, 512 * sizeof(float), *stream);
    rms_norm(call, *stream);
    backend->copy(here + 512, there + 512, 256 * sizeof(float), *stream);
  });
  for (const float factor : {1.0f, 5.0f}) {
    for (int i = 0; i < 256; ++i) here[i] = 2, here[256 + i] = factor;
    graph->launch(*stream);
    stream->synchronize();
    CHECK(here[512] == doctest::Approx(factor));
    CHECK(here[767] == doctest::Approx(factor));
  }
}

std::string refusal(Backend& backend, const RmsNorm& call) {
  return testing::refusal(backend, [&](Stream& stream) { rms_norm(call, stream); });
}

TEST_CASE("arguments that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return TensorView(memory.data(), type, shape);
  };
  RmsNorm good;
  good.out = good.x = good.residual = tensor({4, 64});
  good.weight = tensor({64});
  CHECK(refusal(*backend, good) == "");

  RmsNorm bad = good;
  bad.x.stride[0] = 128;
  CHECK(refusal(*backend, bad).find("rms_norm: x is bfloat16 [4, 64] with strides [128, 1]") == 0);
  bad = good;
  bad.residual.stride[1] = 2;
  CHECK(refusal(*backend, bad).find("rms_norm: residual is ") == 0);
  bad = good;
  bad.weight = tensor({64}, DType::f32);
  CHECK(refusal(*backend, bad).find("rms_norm: weight is float32 [64]; it must be bfloat16 [64]") ==
        0);
  bad = good;
  bad.weight = tensor({63});
  CHECK(
      refusal(*backend, bad).find("rms_norm: weight is bfloat16 [63]; it must be bfloat16 [64]") ==
      0);
  bad = good;
  bad.out = tensor({5, 64});
  CHECK(refusal(*backend, bad)
            .find("rms_norm: out is bfloat16 [5, 64]; it must be bfloat16 [4, 64]") == 0);
  bad = good;
  bad.residual = tensor({64});
  CHECK(refusal(*backend, bad).find("rms_norm: residual is ") == 0);
  bad = good;
  bad.x = tensor({4, 64}, DType::i32);
  CHECK(refusal(*backend, bad).find("rms_norm: x is int32 [4, 64]; it must be float32") == 0);
  bad = good;
  bad.x = tensor({4 * 64});
  CHECK(refusal(*backend, bad).find("rms_norm: x is bfloat16 [256]; it must be [rows, columns]") ==
        0);
  for (const std::int64_t columns : {std::int64_t{0}, kRmsNormMaxColumns + 1}) {
    bad = good;
    bad.x = bad.out = bad.residual = tensor({1, columns});
    bad.weight = tensor({columns});
    CHECK(refusal(*backend, bad).find("1 to 65536 columns") != std::string::npos);
  }
  bad = good;
  bad.out.data = static_cast<char*>(memory.data()) + 1;
  CHECK(refusal(*backend, bad).find("rms_norm: out lies at ") == 0);
}

}  // namespace
}  // namespace nvllm::kernels
