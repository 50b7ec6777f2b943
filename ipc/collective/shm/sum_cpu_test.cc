#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/math.h"
#include "ipc/collective/shm/copy_methods.h"
#include "ipc/collective/testing/test_calls.h"

namespace nvllm::ipc {
namespace {

template <typename T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
T random_value(std::uint64_t bits) {
  // Any bits except NaN and infinity: including denormals and both zeros.
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  const float wide = to_float(value);
  return wide - wide == 0.0f ? value : T{};
}

template <typename T>
void compare_with_plain_sum() {
  const std::uint64_t seed = fresh_seed();
  for (int ranks : {2, 3, 8}) {
    for (std::size_t elements : {0, 1, 7, 8, 9, 31, 32, 33, 100, 1027}) {
      std::vector<std::vector<T>> parts(static_cast<std::size_t>(ranks));
      std::vector<const void*> sources;
      for (int rank = 0; rank < ranks; ++rank) {
        auto& part = parts[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < elements; ++i) {
          part.push_back(
              random_value<T>(split_mix(split_mix(seed + static_cast<std::uint64_t>(rank)) + i)));
        }
        sources.push_back(part.data());
      }
      std::vector<T> to(elements);
      sum_cpu(dtype_of<T>, to.data(), sources, elements);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < elements; ++i) {
        float sum = 0.0f;
        for (const auto& part : parts) sum += to_float(part[i]);
        T expected = from_float<T>(sum);
        if (to_float(expected) == 0.0f) expected = T{};
        wrong += !same_bits(to[i], expected);
      }
      INFO("ranks ", ranks, ", elements ", elements);
      CHECK(wrong == 0);
    }
  }
}

}  // namespace

TEST_CASE("sums of float32 equal the plain definition to the bit") {
  compare_with_plain_sum<float>();
}
TEST_CASE("sums of bfloat16 equal the plain definition to the bit") {
  compare_with_plain_sum<Bf16>();
}
TEST_CASE("sums of float16 equal the plain definition to the bit") {
  compare_with_plain_sum<F16>();
}

TEST_CASE("a sum of negative zeros is zero") {
  const std::vector<float> zeros(40, -0.0f);
  const void* sources[] = {zeros.data(), zeros.data()};
  std::vector<float> sum(40, 1.0f);
  sum_cpu(DType::f32, sum.data(), sources, sum.size());
  for (float value : sum) CHECK(same_bits(value, 0.0f));
}

TEST_CASE("sums of bfloat16 that are no numbers stay so, next to others that are") {
  std::vector<Bf16> values(64, from_float<Bf16>(3.0f));
  values[5] = from_float<Bf16>(std::numeric_limits<float>::infinity());
  values[40] = from_float<Bf16>(std::numeric_limits<float>::quiet_NaN());
  std::vector<Bf16> others(64, from_float<Bf16>(1.0f));
  others[5] = from_float<Bf16>(-std::numeric_limits<float>::infinity());
  const void* sources[] = {values.data(), others.data()};
  std::vector<Bf16> sum(64);
  sum_cpu(DType::bf16, sum.data(), sources, sum.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float expected = to_float(values[i]) + to_float(others[i]);
    CHECK(same_bits(sum[i], from_float<Bf16>(expected)));
    CHECK(std::isnan(to_float(sum[i])) == (i == 5 || i == 40));
  }
}

TEST_CASE("trials: the way that took all ranks least is used, until it is tried again") {
  CopyTrials trials;
  int calls = 0;
  while (trials.trying()) {
    CHECK(trials.count(1000 + calls) == (calls == 39));
    ++calls;
  }
  CHECK(calls == CopyTrials::kTrials * static_cast<int>(CopyTrials::kMethods));
  CHECK(trials.times()[1] == 1004);  // the shortest of its four
  trials.choose({9, 8, 7, 6, 5, 4, 3, 3, 3, 2});
  CHECK(trials.method().stores == Stores::string);
  for (; !trials.trying(); ++calls) trials.count(0);
  CHECK(calls == CopyTrials::kCallsPerChoice);
}

TEST_CASE("copies for others are complete at any size and alignment") {
  std::vector<std::byte> from(5000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(split_mix(i));
  alignas(64) std::byte to[5000];
  for (std::size_t bytes : {0, 1, 31, 64, 127, 128, 129, 1000, 4096}) {
    for (std::size_t offset : {0, 1, 32, 64}) {
      for (Stores stores : {Stores::streamed, Stores::claimed, Stores::string}) {
        std::memset(to, 0x55, sizeof(to));
        copy_for_others(to + offset, from.data() + 3, bytes, stores);
        CHECK(std::memcmp(to + offset, from.data() + 3, bytes) == 0);
        CHECK(to[offset + bytes] == std::byte{0x55});
      }
    }
  }
}

}  // namespace nvllm::ipc
