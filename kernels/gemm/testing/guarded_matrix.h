// Matrices for the test cases of GEMMs, with gaps and guards, and the numbers that bound rounding
// errors of what is computed from them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {

// The distance of neighbouring values, relative to them, and the smallest positive value.
struct Precision {
  float ulp, min;
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
    const Normal normal(center, deviation);
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

// What rounding errors in a GEMM's sums are in proportion to: the absolute values of the terms of
// row r and output o, added up.
class TermSums {
 public:
  TermSums(const TensorView& x, const TensorView& weight) : TermSums(magnitudes(x), weight) {}
  // x: magnitudes, row by row.
  TermSums(std::vector<float> x, const TensorView& weight)
      : inputs_(weight.shape[1]), x_(std::move(x)), weight_(magnitudes(weight)) {}

  double operator()(std::int64_t row, std::int64_t output) const {
    const float* x = &x_[static_cast<std::size_t>(row * inputs_)];
    const float* weight = &weight_[static_cast<std::size_t>(output * inputs_)];
    // Several sums, which the compiler adds up in one register.
    constexpr std::int64_t kLanes = 16;
    std::array<float, kLanes> sums{};
    std::int64_t i = 0;
    for (; i + kLanes <= inputs_; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        sums[lane] += x[i + lane] * weight[i + lane];
    }
    double sum = 0;
    for (const float part : sums) sum += part;
    for (; i < inputs_; ++i) sum += x[i] * weight[i];
    return sum;
  }

  static std::vector<float> magnitudes(const TensorView& matrix) {
    std::vector<float> all;
    all.reserve(static_cast<std::size_t>(matrix.elements()));
    for (std::int64_t r = 0; r < matrix.shape[0]; ++r) {
      for (std::int64_t c = 0; c < matrix.shape[1]; ++c)
        all.push_back(std::fabs(get(matrix, r, c)));
    }
    return all;
  }

 private:
  std::int64_t inputs_;
  std::vector<float> x_, weight_;
};

// The bytes of a matrix's rows, without what lies between them.
inline std::vector<char> bytes_of_rows(const TensorView& matrix) {
  const std::size_t row_bytes = matrix.shape[1] * size_of(matrix.dtype);
  std::vector<char> bytes;
  for (std::int64_t row = 0; row < matrix.shape[0]; ++row) {
    const char* from = matrix.as<char>() + row * matrix.stride[0] * size_of(matrix.dtype);
    bytes.insert(bytes.end(), from, from + row_bytes);
  }
  return bytes;
}

inline TensorView vector_of(const TensorView& row) {
  return TensorView(row.data, row.dtype, {row.shape[1]});
}

}  // namespace nvllm::kernels::testing
