// decode(): against values that others computed, against the formats' definition in double
// arithmetic, and the fast version against the plain one, bit by bit.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/quantization_reference.h"

namespace nvllm::model {
namespace {

constexpr Encoding kQuantized[] = {Encoding::q8_0, Encoding::q4_0, Encoding::q4_1,
                                   Encoding::q5_0, Encoding::q5_1, Encoding::q4_k,
                                   Encoding::q5_k, Encoding::q6_k, Encoding::mxfp4_blocks};
constexpr Encoding kDense[] = {Encoding::f32, Encoding::f16, Encoding::bf16, Encoding::f8_e4m3};

std::vector<std::byte> read_data(const std::string& name) {
  std::ifstream file("tests/data/gguf-blocks/" + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(text.empty());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

using Decode = void (*)(Encoding, const std::byte*, std::int64_t, DType, void*);

template <typename T>
std::vector<T> decoded(Decode function, Encoding encoding, const std::vector<std::byte>& blocks) {
  const auto count = static_cast<std::int64_t>(blocks.size()) / block_bytes(encoding);
  std::vector<T> values(static_cast<std::size_t>(count * block_elements(encoding)));
  function(encoding, blocks.data(), count * block_elements(encoding), dtype_of<T>, values.data());
  return values;
}

// Random bytes: scales of every kind, infinities and NaNs among them.
std::vector<std::byte> random_blocks(Encoding encoding, std::int64_t count) {
  std::mt19937 random(7);
  std::vector<std::byte> blocks(static_cast<std::size_t>(count * block_bytes(encoding)));
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random() & 0xff);
  return blocks;
}

// A float16 as a double, by the definition of the format.
double half(const std::uint8_t* from) {
  const int bits = from[0] | from[1] << 8;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// The published loops, in double arithmetic: y is what one block holds.
void define(Encoding encoding, const std::uint8_t* x, double* y) {
  const auto scale_and_minimum = [&](int j, int& scale, int& minimum) {
    const std::uint8_t* const q = x + 4;
    scale = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
    minimum = j < 4 ? q[j + 4] & 63 : (q[j + 4] >> 4) | (q[j] >> 6) << 4;
  };
  const bool k5 = encoding == Encoding::q5_k;
  switch (encoding) {
    case Encoding::q8_0:
      for (int j = 0; j < 32; ++j) y[j] = half(x) * static_cast<std::int8_t>(x[2 + j]);
      break;
    case Encoding::q4_0:
      for (int j = 0; j < 16; ++j) {
        y[j] = half(x) * ((x[2 + j] & 15) - 8);
        y[j + 16] = half(x) * ((x[2 + j] >> 4) - 8);
      }
      break;
    case Encoding::q4_1:
      for (int j = 0; j < 16; ++j) {
        y[j] = half(x) * (x[4 + j] & 15) + half(x + 2);
        y[j + 16] = half(x) * (x[4 + j] >> 4) + half(x + 2);
      }
      break;
    case Encoding::q5_0:
    case Encoding::q5_1: {
      const bool with_offset = encoding == Encoding::q5_1;
      const std::uint8_t* const high = x + (with_offset ? 4 : 2);
      const std::uint32_t qh =
          high[0] | high[1] << 8 | high[2] << 16 | std::uint32_t{high[3]} << 24;
      for (int j = 0; j < 16; ++j) {
        const int low = (high[4 + j] & 15) | static_cast<int>((qh >> j) << 4 & 16);
        const int upper = (high[4 + j] >> 4) | static_cast<int>((qh >> (j + 12)) & 16);
        y[j] = with_offset ? half(x) * low + half(x + 2) : half(x) * (low - 16);
        y[j + 16] = with_offset ? half(x) * upper + half(x + 2) : half(x) * (upper - 16);
      }
      break;
    }
    case Encoding::q4_k:
    case Encoding::q5_k: {
      const std::uint8_t* low = x + (k5 ? 48 : 16);
      for (int part = 0; part < 8; part += 2, low += 32) {
        for (int upper = 0; upper < 2; ++upper) {
          int scale = 0, minimum = 0;
          scale_and_minimum(part + upper, scale, minimum);
          for (int l = 0; l < 32; ++l) {
            const int fifth = k5 && (x[16 + l] & 1 << (part + upper)) != 0 ? 16 : 0;
            const int q = (upper != 0 ? low[l] >> 4 : low[l] & 15) + fifth;
            *y++ = half(x) * scale * q - half(x + 2) * minimum;
          }
        }
      }
      break;
    }
    case Encoding::q6_k: {
      const std::uint8_t *low = x, *high = x + 128, *scale = x + 192;
      for (int n = 0; n < 256; n += 128, y += 128, low += 64, high += 32, scale += 8) {
        for (int l = 0; l < 32; ++l) {
          const int q[4] = {
              (low[l] & 15) | (high[l] & 3) << 4, (low[l + 32] & 15) | (high[l] >> 2 & 3) << 4,
              (low[l] >> 4) | (high[l] >> 4 & 3) << 4, (low[l + 32] >> 4) | (high[l] >> 6) << 4};
          for (int i = 0; i < 4; ++i) {
            const double s = static_cast<std::int8_t>(scale[l / 16 + 2 * i]);
            y[l + 32 * i] = half(x + 208) * s * (q[i] - 32);
          }
        }
      }
      break;
    }
    case Encoding::mxfp4_blocks: {
      constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
      const double scale = x[0] == 255 ? std::nan("") : std::ldexp(1, x[0] - 127);
      for (int j = 0; j < 16; ++j) {
        y[j] = scale * kE2m1[x[1 + j] & 15];
        y[j + 16] = scale * kE2m1[x[1 + j] >> 4];
      }
      break;
    }
    default: FAIL("not quantized");
  }
}

// As bits, except that every NaN is the same.
template <typename T>
std::uint32_t bits_of(T value) {
  return std::isnan(to_float(value)) ? 0x7fffffff : std::bit_cast<std::uint32_t>(to_float(value));
}

template <typename T>
void check_same(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (bits_of(a[i]) != bits_of(b[i]) && different++ == 0) {
      CAPTURE(i);
      CHECK(to_float(a[i]) == to_float(b[i]));
    }
  }
  CHECK(different == 0);
}

TEST_CASE("blocks have the values that the gguf package gives them") {
  for (const Encoding encoding : kQuantized) {
    CAPTURE(std::string(name_of(encoding)));
    const std::string name = name_of(encoding);
    const std::vector<std::byte> blocks = read_data(name + ".blocks");
    const std::vector<std::byte> values = read_data(name + ".f32");
    std::vector<float> expected(values.size() / 4);
    std::memcpy(expected.data(), values.data(), values.size());
    check_same(decoded<float>(decode, encoding, blocks), expected);
  }
}

TEST_CASE("the plain version computes what the formats define, rounded once") {
  for (const Encoding encoding : kQuantized) {
    CAPTURE(std::string(name_of(encoding)));
    const std::vector<std::byte> blocks = random_blocks(encoding, 2000);
    std::vector<double> exact(static_cast<std::size_t>(2000 * block_elements(encoding)));
    for (std::int64_t i = 0; i < 2000; ++i) {
      define(encoding,
             reinterpret_cast<const std::uint8_t*>(blocks.data()) + i * block_bytes(encoding),
             exact.data() + i * block_elements(encoding));
    }
    const std::vector<float> expected(exact.begin(), exact.end());
    check_same(decoded<float>(decode_plain, encoding, blocks), expected);
  }
}

TEST_CASE_TEMPLATE("the fast version gives the plain version's bits", T, float, Bf16, F16) {
  for (const Encoding encoding : kQuantized) {
    CAPTURE(std::string(name_of(encoding)));
    const std::vector<std::byte> blocks = random_blocks(encoding, 2000);
    check_same(decoded<T>(decode, encoding, blocks), decoded<T>(decode_plain, encoding, blocks));
  }
  for (const Encoding encoding : kDense) {
    CAPTURE(std::string(name_of(encoding)));
    for (const std::int64_t count : {0, 1, 15, 16, 17, 65536}) {
      const std::vector<std::byte> values = random_blocks(encoding, count);
      check_same(decoded<T>(decode, encoding, values), decoded<T>(decode_plain, encoding, values));
    }
  }
}

TEST_CASE("blocks may begin at any byte, and nothing is written behind the last element") {
  for (const Encoding encoding : kQuantized) {
    CAPTURE(std::string(name_of(encoding)));
    const auto elements = static_cast<std::size_t>(block_elements(encoding));
    const std::vector<std::byte> block = random_blocks(encoding, 1);
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::vector<std::byte> shifted(shift);
      shifted.insert(shifted.end(), block.begin(), block.end());
      std::vector<Bf16> out(elements + 1, Bf16{0x1234});
      decode(encoding, shifted.data() + shift, block_elements(encoding), DType::bf16, out.data());
      CHECK(out.back().bits == 0x1234);
      out.pop_back();
      check_same(out, decoded<Bf16>(decode_plain, encoding, block));
    }
  }
}

TEST_CASE("sizes of blocks") {
  CHECK(block_bytes(Encoding::q8_0) == 34);
  CHECK(block_bytes(Encoding::q4_0) == 18);
  CHECK(block_bytes(Encoding::q4_1) == 20);
  CHECK(block_bytes(Encoding::q5_0) == 22);
  CHECK(block_bytes(Encoding::q5_1) == 24);
  CHECK(block_bytes(Encoding::q4_k) == 144);
  CHECK(block_bytes(Encoding::q5_k) == 176);
  CHECK(block_bytes(Encoding::q6_k) == 210);
  CHECK(block_bytes(Encoding::mxfp4_blocks) == 17);
}

}  // namespace
}  // namespace nvllm::model
