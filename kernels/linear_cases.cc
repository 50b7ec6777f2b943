// Products against their plain definition, on whichever backend is linked.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "device/backend_under_test.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"

namespace nvllm::kernels {
namespace {

using Before = Linear::Before;

// The distance of neighbouring values, relative to them, and the least positive value.
struct Precision {
  float ulp, least;
};
Precision precision_of(DType type) {
  switch (type) {
    case DType::f32: return {0x1p-23f, 0x1p-149f};
    case DType::bf16: return {0x1p-7f, 0x1p-133f};
    default: return {0x1p-10f, 0x1p-24f};
  }
}

float get(const TensorView& tensor, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * tensor.stride[0] + column;
  switch (tensor.dtype) {
    case DType::f32: return tensor.as<float>()[at];
    case DType::bf16: return to_float(tensor.as<Bf16>()[at]);
    default: return to_float(tensor.as<F16>()[at]);
  }
}

void put(const TensorView& tensor, std::int64_t row, std::int64_t column, float value) {
  const std::int64_t at = row * tensor.stride[0] + column;
  switch (tensor.dtype) {
    case DType::f32: tensor.as<float>()[at] = value; break;
    case DType::bf16: tensor.as<Bf16>()[at] = from_float<Bf16>(value); break;
    default: tensor.as<F16>()[at] = from_float<F16>(value); break;
  }
}

// A matrix on the host and in the backend's memory. Its rows lie `gap` elements apart, all of it
// `shift` elements after an aligned address; gaps, and guards around it, belong to nobody.
class Matrix {
 public:
  Matrix(Backend& backend, DType type, std::int64_t rows, std::int64_t columns,
         std::int64_t gap = 0, std::int64_t shift = 0)
      : backend_(backend),
        stride_(columns + gap),
        before_(kGuard + shift),
        elements_(before_ + rows * stride_ + kGuard),
        there_buffer_(backend.allocate(MemoryKind::device, elements_ * size_of(type), "test")),
        here_buffer_(backend.allocate(MemoryKind::pinned, elements_ * size_of(type), "test")) {
    std::memset(here_buffer_.data(), kUntouched, here_buffer_.bytes());
    here = view(here_buffer_, type, rows, columns);
    there = view(there_buffer_, type, rows, columns);
  }

  void fill(std::mt19937& random, float center, float deviation) {
    std::normal_distribution<float> normal(center, deviation);
    for (std::int64_t r = 0; r < here.shape[0]; ++r) {
      for (std::int64_t c = 0; c < here.shape[1]; ++c) put(here, r, c, normal(random));
    }
  }
  void upload(Stream& stream) {
    backend_.copy(there_buffer_.data(), here_buffer_.data(), here_buffer_.bytes(), stream);
  }
  void fetch(Stream& stream) {
    backend_.copy(here_buffer_.data(), there_buffer_.data(), here_buffer_.bytes(), stream);
    stream.synchronize();
  }
  // Bytes outside the matrix that somebody changed.
  int touched() const {
    const auto* bytes = static_cast<const unsigned char*>(here_buffer_.data());
    const std::int64_t size = static_cast<std::int64_t>(size_of(here.dtype));
    int count = 0;
    for (std::int64_t at = 0; at < elements_; ++at) {
      const std::int64_t inside = at - before_;
      const bool owned =
          inside >= 0 && inside < here.shape[0] * stride_ && inside % stride_ < here.shape[1];
      if (owned) continue;
      for (std::int64_t b = 0; b < size; ++b) count += bytes[at * size + b] != kUntouched;
    }
    return count;
  }

  TensorView here, there;

 private:
  static constexpr std::int64_t kGuard = 64;
  static constexpr unsigned char kUntouched = 0xa5;

  TensorView view(const Buffer& buffer, DType type, std::int64_t rows, std::int64_t columns) const {
    char* begin = static_cast<char*>(buffer.data()) + before_ * size_of(type);
    TensorView tensor(begin, type, {rows, columns});
    tensor.stride[0] = stride_;
    return tensor;
  }

  Backend& backend_;
  std::int64_t stride_, before_, elements_;
  Buffer there_buffer_, here_buffer_;
};

TensorView vector_of(const TensorView& row) {
  return TensorView(row.data, row.dtype, {row.shape[1]});
}

struct Setting {
  std::int64_t rows = 1, outputs = 1, inputs = 1;
  DType type = DType::f32;
  bool float_out = false, bias = false, residual = false, in_place = false;
  std::int64_t x_gap = 0, out_gap = 0, shift = 0;
  Before before = Before::nothing;
  Activation activation = Activation::silu;

  std::string describe() const {
    return str(name_of(type), " ", rows, " x ", inputs, " -> ", outputs, float_out ? " float" : "",
               bias ? " bias" : "", residual ? " residual" : "", in_place ? " in place" : "",
               " gaps ", x_gap, " ", out_gap, " shift ", shift, " before ",
               static_cast<int>(before), " ", static_cast<int>(activation));
  }
};

// All tensors of one product.
struct Product {
  Setting setting;
  Matrix x, weight, bias, residual, out, norm_weight, scratch;

  Product(Backend& backend, const Setting& s, unsigned seed)
      : setting(s),
        x(backend, s.type, s.rows, s.before == Before::gated_activation ? 2 * s.inputs : s.inputs,
          s.x_gap, s.shift),
        weight(backend, s.type, s.outputs, s.inputs, 0, s.shift),
        bias(backend, s.type, 1, s.outputs, 0, s.shift),
        residual(backend, s.type, s.rows, s.outputs, s.out_gap, s.shift),
        out(backend, s.float_out ? DType::f32 : s.type, s.rows, s.outputs, s.out_gap, s.shift),
        norm_weight(backend, s.type, 1, s.inputs, 0, s.shift),
        scratch(backend, s.type, s.rows + 1, s.inputs, 0, s.shift) {
    std::mt19937 random(seed);
    x.fill(random, 0, 1);
    weight.fill(random, 0, 0.3f);
    bias.fill(random, 0, 2);
    residual.fill(random, 0, 2);
    norm_weight.fill(random, 1, 0.2f);
    out.fill(random, std::nanf(""), 0);  // who reads it, or forgets to write it, is found out
    if (s.in_place) copy_values(residual.here, out.here);
    scratch.fill(random, std::nanf(""), 0);
  }

  static void copy_values(const TensorView& from, const TensorView& to) {
    for (std::int64_t r = 0; r < from.shape[0]; ++r) {
      for (std::int64_t c = 0; c < from.shape[1]; ++c) put(to, r, c, get(from, r, c));
    }
  }

  void upload(Stream& stream) {
    for (Matrix* one : {&x, &weight, &bias, &residual, &out, &norm_weight, &scratch}) {
      one->upload(stream);
    }
    stream.synchronize();  // of constants the first product demands it
  }

  Linear args() const {
    Linear call;
    call.out = out.there;
    call.x = x.there;
    call.weight = weight.there;
    if (setting.bias) call.bias = vector_of(bias.there);
    if (setting.residual) call.residual = residual.there;
    if (setting.in_place) call.residual = out.there;
    call.before = setting.before;
    call.norm_weight = vector_of(norm_weight.there);
    call.activation = setting.activation;
    call.scratch = scratch.there;
    return call;
  }

  // x with what happens to it first, by the backend's own operation: the rest must follow exactly.
  Matrix prepared(Backend& backend, Stream& stream) const {
    const Setting& s = setting;
    Matrix result(backend, s.type, s.rows, s.inputs);
    if (s.before == Before::rms_norm) {
      RmsNorm norm;
      norm.out = result.there;
      norm.x = x.there;
      norm.weight = vector_of(norm_weight.there);
      norm.epsilon = args().epsilon;
      rms_norm(norm, stream);
    } else {
      gated_activation({.out = result.there, .x = x.there, .activation = s.activation}, stream);
    }
    result.fetch(stream);
    return result;
  }
};

// How many results are further from the definition than rounding explains. A sum of n terms in
// float32, in any order, is off by at most n roundings of the terms' absolute sum (of 2^-23, since
// tensor cores cut off where others round); then comes one rounding to out's type, which may fall to
// either side. Where the definition gives infinity or NaN, so must the product.
int count_wrong(const Product& product, const TensorView& x, const TensorView& residual) {
  const Setting& s = product.setting;
  Matrix const& out = product.out;
  std::vector<char> memory(static_cast<std::size_t>(out.here.elements()) * size_of(out.here.dtype));
  Linear call;
  call.out = TensorView(memory.data(), out.here.dtype, {s.rows, s.outputs});
  call.x = x;
  call.weight = product.weight.here;
  if (s.bias) call.bias = vector_of(product.bias.here);
  if (s.residual || s.in_place) call.residual = residual;
  linear_reference(call);

  const Precision precision = precision_of(out.here.dtype);
  int wrong = 0;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t o = 0; o < s.outputs; ++o) {
      const float value = get(out.here, r, o), right = get(call.out, r, o);
      if (std::isnan(right) || std::isinf(right)) {
        wrong += std::isnan(right) ? !std::isnan(value) : value != right;
        continue;
      }
      double terms = s.bias ? std::fabs(get(product.bias.here, 0, o)) : 0.0f;
      if (call.residual.data != nullptr) terms += std::fabs(get(residual, r, o));
      for (std::int64_t i = 0; i < s.inputs; ++i) {
        terms += std::fabs(get(x, r, i) * get(product.weight.here, o, i));
      }
      const double tolerance = static_cast<double>(s.inputs + 2) * 0x1p-23 * terms +
                               precision.ulp * std::fabs(right) + precision.least;
      wrong += !(std::fabs(double{value} - right) <= tolerance);
    }
  }
  return wrong;
}

// Runs a product of random values on the backend and says how much of it is wrong.
void check_product(Backend& backend, Matmul& matmul, Stream& stream, const Setting& setting,
                   unsigned seed) {
  INFO(setting.describe());
  Product product(backend, setting, seed);
  Matrix residual(backend, setting.type, setting.rows, setting.outputs);
  Product::copy_values(product.residual.here, residual.here);
  product.upload(stream);
  matmul.linear(product.args(), stream);
  product.out.fetch(stream);
  CHECK(product.out.touched() == 0);
  if (setting.before == Before::nothing) {
    CHECK(count_wrong(product, product.x.here, residual.here) == 0);
    return;
  }
  product.scratch.fetch(stream);
  CHECK(product.scratch.touched() == 0);
  const Matrix x = product.prepared(backend, stream);
  CHECK(count_wrong(product, x.here, residual.here) == 0);
}

// What a test needs to run products.
struct Bench {
  explicit Bench(Backend& backend)
      : backend(backend), matmul(create_matmul(backend)), stream(backend.create_stream()) {}
  void check(const Setting& setting, unsigned seed) {
    check_product(backend, *matmul, *stream, setting, seed);
  }
  Backend& backend;
  std::unique_ptr<Matmul> matmul;
  std::unique_ptr<Stream> stream;
};

TEST_CASE_TEMPLATE("a product is what its definition says, for all shapes", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  std::mt19937 random(7);
  // rows, outputs, inputs
  std::vector<std::array<std::int64_t, 3>> shapes = {
      {0, 5, 7},    {3, 0, 4},    {2, 3, 0},     {0, 0, 0},    {1, 1, 1},     {1, 8, 8},
      {2, 7, 24},   {3, 9, 40},   {8, 24, 64},   {9, 25, 72},  {16, 33, 96},  {17, 31, 104},
      {1, 389, 64}, {5, 388, 72}, {16, 777, 56}, {31, 65, 63}, {64, 64, 64},  {200, 130, 72},
      {4, 24, 1},   {7, 5, 255},  {12, 17, 257}, {40, 3, 9},   {1, 130, 4096}};
  const auto up_to = [&](unsigned most) { return static_cast<std::int64_t>(1 + random() % most); };
  for (int i = 0; i < 25; ++i) {
    shapes.push_back({up_to(20), up_to(200), 8 * up_to(60)});
  }
  for (int i = 0; i < 10; ++i) {
    shapes.push_back({up_to(80), up_to(80), up_to(300)});
  }
  for (const auto& shape : shapes) {
    Setting setting{.rows = shape[0], .outputs = shape[1], .inputs = shape[2], .type = dtype_of<T>};
    setting.float_out = random() % 4 == 0;
    setting.bias = random() % 2 == 0;
    setting.residual = random() % 2 == 0;
    setting.in_place = !setting.float_out && random() % 4 == 0;
    bench.check(setting, random());
  }
}

TEST_CASE_TEMPLATE("long sums, for every number of rows", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const std::int64_t inputs : {1024, 2560, 9728}) {
    for (const std::int64_t rows : {1, 2, 8, 9, 16, 17}) {
      Setting setting{.rows = rows, .outputs = 45, .inputs = inputs, .type = dtype_of<T>};
      setting.in_place = rows % 2 == 0;
      bench.check(setting, ++seed);
    }
  }
}

TEST_CASE("float32 out of 16 bits is not rounded to 16 bits first") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 5, 16, 40}) {
    Setting setting{.rows = rows, .outputs = 100, .inputs = 64, .type = DType::bf16};
    setting.float_out = true;
    bench.check(setting, 3);
    setting.bias = setting.residual = true;
    bench.check(setting, 4);
  }
}

TEST_CASE_TEMPLATE("rows may lie apart, and between them nothing is touched", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const std::int64_t rows : {1, 2, 4, 16, 33}) {
    for (const auto& [x_gap, out_gap] : {std::pair{8, 16}, {3, 1}, {0, 5}, {64, 0}}) {
      Setting setting{.rows = rows, .outputs = 48, .inputs = 96, .type = dtype_of<T>};
      setting.x_gap = x_gap;
      setting.out_gap = out_gap;
      bench.check(setting, ++seed);
      setting.residual = true;
      bench.check(setting, ++seed);
      setting.in_place = true;
      bench.check(setting, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("tensors may lie at any address", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t shift : {1, 4, 7}) {
    for (const std::int64_t rows : {1, 3, 16, 20}) {
      Setting setting{.rows = rows, .outputs = 40, .inputs = 136, .type = dtype_of<T>};
      setting.shift = shift;
      setting.bias = true;
      bench.check(setting, 5);
      setting.before = Before::rms_norm;
      bench.check(setting, 6);
    }
  }
}

TEST_CASE_TEMPLATE("with RMSNorm before: as rms_norm and then the product", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const std::int64_t rows : {0, 1, 2, 4, 5, 16, 40}) {
    for (const std::int64_t inputs : {1, 8, 100, 256, 2560, 5120}) {
      Setting setting{.rows = rows, .outputs = 30, .inputs = inputs, .type = dtype_of<T>};
      setting.before = Before::rms_norm;
      setting.bias = inputs == 256;
      bench.check(setting, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("with a gated activation before: as that and then the product", T, float, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  unsigned seed = 0;
  for (const Activation activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    for (const std::int64_t rows : {0, 1, 3, 16, 40}) {
      for (const std::int64_t inputs : {8, 33, 768}) {
        Setting setting{.rows = rows, .outputs = 30, .inputs = inputs, .type = dtype_of<T>};
        setting.before = Before::gated_activation;
        setting.activation = activation;
        setting.in_place = inputs == 768;
        bench.check(setting, ++seed);
      }
    }
  }
}

TEST_CASE_TEMPLATE("a NaN spoils its row or its output, and no other", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 3, 4, 16, 40}) {
    CAPTURE(rows);
    Setting setting{.rows = rows, .outputs = 50, .inputs = 72, .type = dtype_of<T>};
    Product product(*backend, setting, 11);
    put(product.x.here, rows - 1, 71, std::nanf(""));
    put(product.weight.here, 13, 5, std::nanf(""));
    product.upload(*bench.stream);
    bench.matmul->linear(product.args(), *bench.stream);
    product.out.fetch(*bench.stream);
    int wrong = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < 50; ++o) {
        wrong += std::isnan(get(product.out.here, r, o)) != (r == rows - 1 || o == 13);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("infinite, huge and tiny values do as the definition", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t rows : {1, 16, 32}) {
    for (const float value :
         {kInfinity, -kInfinity, 1e38f, 60000.0f, 1e-6f, 6e-8f, 1e-30f, 1e-38f}) {
      CAPTURE(rows);
      CAPTURE(value);
      // The only one that is subnormal, which may count as zero.
      if (value == 1e-38f && dtype_of<T> == DType::bf16) continue;
      Setting setting{.rows = rows, .outputs = 20, .inputs = 40, .type = dtype_of<T>};
      Product product(*backend, setting, 12);
      // One term, or terms all alike in size: nothing overflows in one order only.
      for (std::int64_t i = 0; i < 40; ++i) put(product.x.here, 0, i, i == 7 ? value : 0.0f);
      for (std::int64_t o = 0; o < 20; ++o) put(product.weight.here, o, 7, o % 2 == 0 ? 1.5f : -2);
      product.upload(*bench.stream);
      bench.matmul->linear(product.args(), *bench.stream);
      product.out.fetch(*bench.stream);
      CHECK(count_wrong(product, product.x.here, product.residual.here) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("the same product gives the same bits", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 7, 16, 64}) {
    CAPTURE(rows);
    Setting setting{.rows = rows, .outputs = 300, .inputs = 1024, .type = dtype_of<T>};
    Product product(*backend, setting, 13);
    product.upload(*bench.stream);
    std::vector<char> first;
    for (int turn = 0; turn < 5; ++turn) {
      bench.matmul->linear(product.args(), *bench.stream);
      product.out.fetch(*bench.stream);
      const auto* data = product.out.here.as<char>();
      const std::vector<char> bits(data, data + product.out.here.bytes());
      if (turn == 0) first = bits;
      CHECK(bits == first);
    }
  }
}

TEST_CASE("products run in graphs, one after another") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::int64_t rows : {1, 16, 48}) {
    CAPTURE(rows);
    Setting setting{.rows = rows, .outputs = 512, .inputs = 512, .type = DType::bf16};
    setting.before = Before::rms_norm;
    setting.residual = true;
    Product first(*backend, setting, 20), second(*backend, setting, 21);
    Linear chained = second.args();
    chained.x = first.out.there;
    first.upload(*bench.stream);
    second.upload(*bench.stream);
    const auto graph = backend->capture(*bench.stream, [&] {
      first.x.upload(*bench.stream);
      bench.matmul->linear(first.args(), *bench.stream);
      bench.matmul->linear(chained, *bench.stream);
    });
    for (unsigned launch = 0; launch < 3; ++launch) {
      std::mt19937 random(30 + launch);
      first.x.fill(random, 0, 1);
      graph->launch(*bench.stream);
      graph->launch(*bench.stream);
      first.out.fetch(*bench.stream);
      second.out.fetch(*bench.stream);
      CHECK(count_wrong(first, first.prepared(*backend, *bench.stream).here, first.residual.here) ==
            0);
      Product::copy_values(first.out.here, second.x.here);
      second.x.upload(*bench.stream);
      CHECK(count_wrong(second, second.prepared(*backend, *bench.stream).here,
                        second.residual.here) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("after tuning, products are as right as before", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Setting setting{.rows = 70, .outputs = 96, .inputs = 128, .type = dtype_of<T>};
  setting.residual = true;
  {
    Product most(*backend, setting, 40);
    most.upload(*bench.stream);
    bench.matmul->tune(most.args(), *bench.stream);
    most.out.fetch(*bench.stream);
    CHECK(most.out.touched() == 0);
  }
  for (const std::int64_t rows : {1, 16, 17, 32, 60, 64, 69, 70, 71}) {
    setting.rows = rows;
    bench.check(setting, static_cast<unsigned>(rows));
  }
}

std::string refusal(Bench& bench, const Linear& call) {
  try {
    bench.matmul->linear(call, *bench.stream);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("arguments that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return TensorView(memory.data(), type, shape);
  };
  Linear good;
  good.out = good.residual = tensor({4, 32});
  good.x = tensor({4, 64});
  good.weight = tensor({32, 64});
  good.bias = tensor({32});
  const auto refused = [&](auto&& spoil, const char* text) {
    Linear bad = good;
    spoil(bad);
    CHECK(refusal(bench, bad).find(text) == 0);
  };
  refused(
      [&](Linear& l) {
        l.weight = tensor({32, 64}, DType::i32);
      },
      "linear: weight is int32 [32, 64]; it must be float32, bfloat16 or float16");
  refused([&](Linear& l) { l.weight = tensor({32 * 64}); }, "linear: weight is bfloat16 [2048]");
  refused([&](Linear& l) { l.weight.stride[0] = 65; },
          "linear: weight is bfloat16 [32, 64] with strides [65, 1]");
  refused(
      [&](Linear& l) {
        l.x = tensor({4, 63});
      },
      "linear: x is bfloat16 [4, 63]; it must be [rows, inputs], [4, 64]");
  refused(
      [&](Linear& l) {
        l.x = tensor({4, 64}, DType::f32);
      },
      "linear: x is float32 [4, 64], but weight is bfloat16");
  refused([&](Linear& l) { l.x.stride[0] = 63; },
          "linear: x is bfloat16 [4, 64] with strides [63, 1]");
  refused([&](Linear& l) { l.x.stride[1] = 2; }, "linear: x is bfloat16 [4, 64] with strides");
  refused([&](Linear& l) { l.x = tensor({64}); }, "linear: x is bfloat16 [64]; it must be");
  refused([&](Linear& l) { l.out = tensor({5, 32}); }, "linear: out is bfloat16 [5, 32]; it must");
  refused(
      [&](Linear& l) {
        l.out = tensor({4, 32}, DType::f16);
      },
      "linear: out is float16 [4, 32]");
  refused([&](Linear& l) { l.bias = tensor({31}); }, "linear: bias is bfloat16 [31]");
  refused([&](Linear& l) { l.bias = tensor({32}, DType::f32); }, "linear: bias is float32 [32]");
  refused([&](Linear& l) { l.residual = tensor({4, 31}); }, "linear: residual is bfloat16 [4, 31]");
  refused(
      [&](Linear& l) {
        l.residual = tensor({4, 32}, DType::f32);
      },
      "linear: residual is float32 [4, 32]");
  refused([&](Linear& l) { l.x.data = static_cast<char*>(memory.data()) + 1; },
          "linear: x lies at ");

  good.scratch = tensor({4, 64});
  good.norm_weight = tensor({64});
  good.before = Before::rms_norm;
  refused([&](Linear& l) { l.scratch = {}; }, "linear: scratch is ");
  refused([&](Linear& l) { l.scratch = tensor({3, 64}); }, "linear: scratch is bfloat16 [3, 64]");
  refused([&](Linear& l) { l.norm_weight = tensor({63}); }, "rms_norm: weight is bfloat16 [63]");
  refused([&](Linear& l) { l.x.stride[0] = 128; }, "rms_norm: x is bfloat16 [4, 64] with strides");
  good.before = Before::gated_activation;
  refused([](Linear&) {}, "linear: x is bfloat16 [4, 64]; it must be [rows, 2 * inputs], [4, 128]");
}

}  // namespace
}  // namespace nvllm::kernels
