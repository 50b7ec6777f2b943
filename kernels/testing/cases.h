// What test cases of operations share: tensors in a backend's memory between guards, and
// comparisons.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/e4m3.h"
#include "device/tensor_view.h"
#include "device/testing/backend_under_test.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

// Types of a TEST_CASE_TEMPLATE: all, and those of 16 bits. Sanitizers find in F16's code what they
// find in Bf16's, whose values lie where its do.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FLOAT_TYPES float, Bf16
#define HALF_TYPES Bf16
#else
#define FLOAT_TYPES float, Bf16, F16
#define HALF_TYPES Bf16, F16
#endif

// Shapes that fill GPUs take minutes under sanitizers, which have nothing to find in them that
// smaller ones lack.
#define GPU_SHAPES_OR_SKIP() \
  if (nvllm::testing::kSanitized) SKIP_TEST("shapes for GPUs, without sanitizers only")

namespace nvllm::kernels::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A seed for random inputs, printed so that a failure can be repeated with it.
inline unsigned fresh_seed() {
  const unsigned seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  return seed;
}

// The distance of neighbouring values, relative to them, the least positive value and the largest.
template <typename T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr float kUlp = 0x1p-23f, kMin = 0x1p-149f, kMax = 0x1.fffffep127f;
};
template <>
struct Limits<Bf16> {
  static constexpr float kUlp = 0x1p-7f, kMin = 0x1p-133f, kMax = 0x1.fep127f;
};
template <>
struct Limits<F16> {
  static constexpr float kUlp = 0x1p-10f, kMin = 0x1p-24f, kMax = 65504.0f;
};
template <>
struct Limits<E4m3> {
  static constexpr float kUlp = 0x1p-3f, kMin = 0x1p-9f, kMax = 448.0f;
};

// Values in a backend's memory, `shift` elements after an aligned address, between guards that
// nobody may touch.
template <typename T>
class Placed {
 public:
  Placed(Backend& backend, Stream& stream, const std::vector<T>& values, std::int64_t shift = 0)
      : backend_(backend),
        stream_(stream),
        count_(values.size()),
        before_(kGuard + shift),
        there_(backend.allocate(MemoryKind::device, bytes(), "test")),
        here_(backend.allocate(MemoryKind::pinned, bytes(), "test")) {
    std::memset(here_.data(), kUntouched, bytes());
    if (count_ > 0) std::memcpy(here_begin(), values.data(), count_ * sizeof(T));
    backend.copy(there_.data(), here_.data(), bytes(), stream);
  }

  T* data() const { return static_cast<T*>(there_.data()) + before_; }
  TensorView view(std::initializer_list<std::int64_t> shape) const {
    return TensorView(data(), dtype_of<T>, shape);
  }

  // What is there when the stream's work has run.
  std::vector<T> fetch() {
    backend_.copy(here_.data(), there_.data(), bytes(), stream_);
    stream_.synchronize();
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), here_begin(), count_ * sizeof(T));
    const unsigned char* all = nvllm::testing::bytes_of(here_);
    std::size_t touched = 0;
    for (std::size_t i = 0; i < before_ * sizeof(T); ++i) touched += all[i] != kUntouched;
    for (std::size_t i = (before_ + count_) * sizeof(T); i < bytes(); ++i) {
      touched += all[i] != kUntouched;
    }
    CHECK(touched == 0);
    return values;
  }

 private:
  static constexpr std::int64_t kGuard = 64;
  static constexpr unsigned char kUntouched = 0xa5;

  std::size_t bytes() const { return (before_ + count_ + kGuard) * sizeof(T); }
  T* here_begin() { return static_cast<T*>(here_.data()) + before_; }

  Backend& backend_;
  Stream& stream_;
  std::size_t count_, before_;
  Buffer there_, here_;
};

// Normally distributed numbers out of 2^16: with std::normal_distribution, making inputs took a
// third of the time of the kernels' tests.
class Normal {
 public:
  explicit Normal(float mean = 0, float width = 1) : mean_(mean), width_(width) {}
  float operator()(std::mt19937& random) const {
    return mean_ + width_ * values()[random() % kValues];
  }

 private:
  static constexpr std::size_t kValues = std::size_t{1} << 16;

  static const std::vector<float>& values() {
    static const std::vector<float> all = [] {
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      std::vector<float> values(kValues);
      for (float& value : values) value = normal(random);
      return values;
    }();
    return all;
  }

  float mean_, width_;
};

template <typename T>
std::vector<T> normal_values(std::int64_t count, unsigned seed, float mean = 0, float width = 1) {
  std::mt19937 bits(seed);
  const Normal normal(mean, width);
  std::vector<T> values(count);
  for (T& value : values) value = from_float<T>(normal(bits));
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Whether `got` may stand for `right` where arithmetic in float32 was off by at most `off` before
// the rounding to T, which may then have fallen to either side. NaN and infinity must be met.
template <typename T>
bool near(T got, T right, float off) {
  const float value = to_float(got), wanted = to_float(right);
  if (std::isnan(wanted)) return std::isnan(value);
  if (std::isinf(wanted) || std::isinf(value)) return value == wanted;
  return std::fabs(value - wanted) <= off + std::fabs(wanted) * Limits<T>::kUlp + Limits<T>::kMin;
}

// The message of the Error that a call throws; empty: none.
template <typename Call>
std::string refusal(Backend& backend, const Call& call) {
  const auto stream = backend.create_stream();
  try {
    call(*stream);
  } catch (const Error& error) {
    stream->synchronize();
    return error.what();
  }
  stream->synchronize();
  return "";
}

}  // namespace nvllm::kernels::testing
