// What the cases of products share: matrices with gaps and guards, all tensors of a product, and what is
// wrong with its result.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "device/testing/backend_under_test.h"
#include "kernels/gemm/linear.h"
#include "kernels/pointwise/rmsnorm.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {

using Before = Linear::Before;

// The distance of neighbouring values, relative to them, and the least positive value.
struct Precision {
  float ulp, least;
};
inline Precision precision_of(DType type) {
  switch (type) {
    case DType::f32: return {Limits<float>::kUlp, Limits<float>::kMin};
    case DType::bf16: return {Limits<Bf16>::kUlp, Limits<Bf16>::kMin};
    default: return {Limits<F16>::kUlp, Limits<F16>::kMin};
  }
}

inline float get(const TensorView& tensor, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * tensor.stride[0] + column;
  switch (tensor.dtype) {
    case DType::f32: return tensor.as<float>()[at];
    case DType::bf16: return to_float(tensor.as<Bf16>()[at]);
    default: return to_float(tensor.as<F16>()[at]);
  }
}

inline void put(const TensorView& tensor, std::int64_t row, std::int64_t column, float value) {
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

// What becomes of rounding errors in a product's sums: row r's and output o's terms, taken positive, added up.
class TermSums {
 public:
  TermSums(const TensorView& x, const TensorView& weight)
      : inputs_(x.shape[1]), x_(magnitudes(x)), weight_(magnitudes(weight)) {}

  double operator()(std::int64_t row, std::int64_t output) const {
    const float* x = &x_[static_cast<std::size_t>(row * inputs_)];
    const float* weight = &weight_[static_cast<std::size_t>(output * inputs_)];
    double sum = 0;
    for (std::int64_t i = 0; i < inputs_; ++i) sum += x[i] * weight[i];
    return sum;
  }

 private:
  static std::vector<float> magnitudes(const TensorView& matrix) {
    std::vector<float> all;
    all.reserve(static_cast<std::size_t>(matrix.elements()));
    for (std::int64_t r = 0; r < matrix.shape[0]; ++r) {
      for (std::int64_t c = 0; c < matrix.shape[1]; ++c)
        all.push_back(std::fabs(get(matrix, r, c)));
    }
    return all;
  }

  std::int64_t inputs_;
  std::vector<float> x_, weight_;
};

inline TensorView vector_of(const TensorView& row) {
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
// tensor cores cut off where others round); then come the roundings to out's type, which may fall to
// either side. Where the definition gives infinity or NaN, so must the product.
inline int count_wrong(const Product& product, const TensorView& x, const TensorView& residual) {
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
  const TermSums term_sum(x, product.weight.here);
  int wrong = 0;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t o = 0; o < s.outputs; ++o) {
      const float value = get(out.here, r, o), right = get(call.out, r, o);
      if (std::isnan(right) || std::isinf(right)) {
        wrong += std::isnan(right) ? !std::isnan(value) : value != right;
        continue;
      }
      double terms = term_sum(r, o);
      if (s.bias) terms += std::fabs(get(product.bias.here, 0, o));
      if (call.residual.data != nullptr) terms += std::fabs(get(residual, r, o));
      // What the bias and the residual were added to, if that was rounded first.
      const float added = call.residual.data != nullptr ? get(residual, r, o) : 0.0f;
      const float before = right - added - (s.bias ? get(product.bias.here, 0, o) : 0.0f);
      const double tolerance =
          static_cast<double>(s.inputs + 2) * 0x1p-23 * terms +
          precision.ulp * (std::fabs(right) + std::fabs(right - added) + std::fabs(before)) +
          2 * precision.least;
      wrong += !(std::fabs(double{value} - right) <= tolerance);
    }
  }
  return wrong;
}

// Runs a product of random values on the backend and says how much of it is wrong.
inline void check_product(Backend& backend, Matmul& matmul, Stream& stream, const Setting& setting,
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
  // What is said of a product that is refused; else nothing.
  std::string refusal(const Linear& call) {
    try {
      matmul->linear(call, *stream);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  Backend& backend;
  std::unique_ptr<Matmul> matmul;
  std::unique_ptr<Stream> stream;
};

}  // namespace nvllm::kernels::testing
