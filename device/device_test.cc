#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "device/backend.h"
#include "device/dtype.h"
#include "device/tensor_view.h"

namespace nvllm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the bits of a finite float16 without its sign mean. Infinity's mean the value for which
// there is no room.
double magnitude_of(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> 10, mantissa = bits & 0x3ff;
  if (exponent == 0) return std::ldexp(mantissa, -24);
  return std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
}

TEST_CASE("every float16 becomes the float that its bits mean") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(F16{static_cast<std::uint16_t>(bits)});
    const std::uint32_t magnitude = bits & 0x7fff;
    wrong += std::signbit(value) != (bits >= 0x8000);
    if (magnitude > 0x7c00) {
      wrong += !std::isnan(value);
    } else if (magnitude == 0x7c00) {
      wrong += !std::isinf(value);
    } else {
      wrong += double{std::fabs(value)} != magnitude_of(magnitude);
    }
  }
  CHECK(wrong == 0);
}

// Nearest to the value; of two that are as near, the even one.
bool rounds(F16 half, float value) {
  const std::uint32_t bits = half.bits & 0x7fff;
  if (std::signbit(value) != (half.bits >= 0x8000)) return false;
  if (std::isnan(value)) return bits > 0x7c00;
  if (std::isinf(value) || bits >= 0x7c00) return bits == 0x7c00 && std::fabs(value) >= 65520;
  const auto distance = [&](std::uint32_t other) {
    return std::fabs(magnitude_of(other) - double{std::fabs(value)});
  };
  const double own = distance(bits), above = distance(bits + 1);
  const double below = bits == 0 ? above : distance(bits - 1);
  const double nearest = std::min(above, below);
  return bits % 2 == 0 ? own <= nearest : own < nearest;
}

TEST_CASE("floats become the nearest float16, ties the even one") {
  std::mt19937 random(1);
  int wrong = 0;
  const auto compare = [&](std::uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    wrong += !rounds(from_float<F16>(value), value);
  };
  for (int i = 0; i < 1'000'000; ++i) compare(random());
  // All that lies at, beside and between neighbouring float16 values.
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = std::bit_cast<std::uint32_t>(to_float(F16{static_cast<std::uint16_t>(half)}));
    for (const int delta : {-1, 0, 1, 0xfff, 0x1000, 0x1001}) compare(bits + delta);
  }
  CHECK(wrong == 0);
}

TEST_CASE("bfloat16 rounds to nearest, ties to even") {
  CHECK(from_float<Bf16>(1.0f).bits == 0x3f80);
  CHECK(from_float<Bf16>(1.0f + 0x1p-8f).bits == 0x3f80);
  CHECK(from_float<Bf16>(1.0f + 0x3p-8f).bits == 0x3f82);
  CHECK(from_float<Bf16>(1.0f + 0x1p-8f + 0x1p-20f).bits == 0x3f81);
  CHECK(from_float<Bf16>(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(from_float<Bf16>(-kInfinity).bits == 0xff80);
}

TEST_CASE("every 16-bit float survives the way to float and back; NaNs stay NaNs") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 b{static_cast<std::uint16_t>(bits)};
    const F16 h{static_cast<std::uint16_t>(bits)};
    const Bf16 b_back = from_float<Bf16>(to_float(b));
    const F16 h_back = from_float<F16>(to_float(h));
    wrong += std::isnan(to_float(b)) ? !std::isnan(to_float(b_back)) : b_back.bits != b.bits;
    wrong += std::isnan(to_float(h)) ? !std::isnan(to_float(h_back)) : h_back.bits != h.bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a tensor view is dense and row-major") {
  float data[24];
  const TensorView view(data, DType::f32, {2, 3, 4});
  CHECK(view.rank == 3);
  CHECK(view.elements() == 24);
  CHECK(view.bytes() == 96);
  CHECK(view.stride[0] == 12);
  CHECK(view.stride[1] == 4);
  CHECK(view.stride[2] == 1);
  CHECK(view.contiguous());
  CHECK(view.describe() == "float32 [2, 3, 4]");
  CHECK(view.as<float>() == data);
}

TEST_CASE("strides are told from dense ones, where they matter") {
  TensorView view(nullptr, DType::bf16, {4, 8});
  view.stride[0] = 16;
  CHECK_FALSE(view.contiguous());
  CHECK_THROWS_WITH_AS(
      require_contiguous(view, "rms_norm", "x"),
      "rms_norm: x is bfloat16 [4, 8] with strides [16, 1]; it must be dense and row-major", Error);
  view.shape[0] = 1;
  CHECK(view.contiguous());
  view.shape[0] = 0;
  CHECK(view.contiguous());
  CHECK(view.elements() == 0);
}

TEST_CASE("a tensor without axes is one element") {
  CHECK(TensorView(nullptr, DType::i64, {}).elements() == 1);
  CHECK(TensorView(nullptr, DType::i64, {}).describe() == "int64 []");
}

TEST_CASE("alignment is that of the address") {
  alignas(16) char data[32];
  CHECK(TensorView(data, DType::u8, {1}).aligned(16));
  CHECK_FALSE(TensorView(data + 2, DType::u8, {1}).aligned(16));
  CHECK(TensorView(nullptr, DType::u8, {0}).aligned(16));
}

TEST_CASE("the ledger adds up equal purposes and orders its entries") {
  Ledger ledger;
  ledger.add(MemoryKind::host, "tokens", 5);
  ledger.add(MemoryKind::device, "weights", 100);
  const auto id = ledger.add(MemoryKind::device, "kv cache", 1000);
  ledger.add(MemoryKind::device, "weights", 11);
  const auto entries = ledger.entries();
  REQUIRE(entries.size() == 3);
  CHECK(entries[0].purpose == "kv cache");
  CHECK(entries[1].purpose == "weights");
  CHECK(entries[1].bytes == 111);
  CHECK(entries[1].buffers == 2);
  CHECK(entries[2].kind == MemoryKind::host);
  ledger.remove(id);
  CHECK(ledger.total(MemoryKind::device) == 111);
}

TEST_CASE("the ledger's report ends each kind with its total") {
  Ledger ledger;
  CHECK(ledger.report().empty());
  ledger.add(MemoryKind::device, "weights", 100);
  ledger.add(MemoryKind::device, "kv cache", 23);
  ledger.add(MemoryKind::pinned, "staging", 7);
  CHECK(ledger.report() ==
        "device                   23 bytes      1 buffer   kv cache\n"
        "device                  100 bytes      1 buffer   weights\n"
        "device                  123 bytes      2 buffers  total\n"
        "pinned                    7 bytes      1 buffer   staging\n"
        "pinned                    7 bytes      1 buffer   total\n");
}

TEST_CASE("a buffer releases its memory once, and when it takes over another") {
  int released = 0;
  const auto make = [&](char* data) {
    return Buffer(data, 1, MemoryKind::host, [&released](void*) { ++released; });
  };
  char memory[2];
  {
    Buffer one = make(memory);
    Buffer two = make(memory + 1);
    one = std::move(two);
    CHECK(released == 1);
    CHECK(one.data() == memory + 1);
    CHECK_FALSE(two);
  }
  CHECK(released == 2);
}

TEST_CASE("a backend that the machine or the build lacks is one clear Error") {
  std::unique_ptr<Backend> backend;
  std::string message;
  try {
    backend = create_backend(DeviceKind::cuda);
  } catch (const Error& error) {
    message = error.what();
  }
  if (backend != nullptr) return;  // this machine has it
  CAPTURE(message);
  const bool says_so = message.find("driver") != std::string::npos ||
                       message.find("GPU") != std::string::npos ||
                       message.find("built without CUDA") != std::string::npos;
  CHECK(says_so);
  CHECK(message.find('\n') == std::string::npos);
}

}  // namespace
}  // namespace nvllm
