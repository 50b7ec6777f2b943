// Shows where each value of a block lies, by its index.
//
// Blocks of 32: a scale d (F16); for the _1 types an offset m (F16); for 5 bits the upper bits (32
// of them, little endian); then 16 bytes that hold value i in their low and value i + 16 in their
// high halves. Blocks of 256 (K): parts of 32 or 16 values, each with its own small integer scales.
#include "model/checkpoint/quantization_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace nvllm::model {
namespace {

int byte_at(const std::byte* block, std::int64_t at) {
  return std::to_integer<int>(block[at]);
}

float f16_at(const std::byte* block, std::int64_t at) {
  F16 value;
  std::memcpy(&value, block + at, sizeof(value));
  return to_float(value);
}

// The low halves of all 16 bytes come first, then the high halves.
int nibble_of_32(const std::byte* nibbles, std::int64_t i) {
  return i < 16 ? byte_at(nibbles, i) & 15 : byte_at(nibbles, i - 16) >> 4;
}

int bit_of_32(const std::byte* bits, std::int64_t i) {
  return byte_at(bits, i / 8) >> (i % 8) & 1;
}

// The 6-bit scale and minimum of part 0..7 of a Q4_K or Q5_K block, packed into 12 bytes: four
// bytes of scales, four of minima, whose upper two bits belong to parts 4..7; then the low halves
// of those.
struct ScaleAndMinimum {
  float scale, minimum;
};
ScaleAndMinimum part_of_k(const std::byte* block, std::int64_t part) {
  const std::byte* const packed = block + 4;
  int scale = 0, minimum = 0;
  if (part < 4) {
    scale = byte_at(packed, part) & 63;
    minimum = byte_at(packed, part + 4) & 63;
  } else {
    scale = (byte_at(packed, part + 4) & 15) | byte_at(packed, part - 4) >> 6 << 4;
    minimum = byte_at(packed, part + 4) >> 4 | byte_at(packed, part) >> 6 << 4;
  }
  return {f16_at(block, 0) * static_cast<float>(scale),
          f16_at(block, 2) * static_cast<float>(minimum)};
}

// Parts 2k and 2k + 1 are the low and the high halves of the same 32 bytes.
int nibble_of_k(const std::byte* nibbles, std::int64_t i) {
  const int byte = byte_at(nibbles, i / 64 * 32 + i % 32);
  return i / 32 % 2 == 0 ? byte & 15 : byte >> 4;
}

float q6_k_at(const std::byte* block, std::int64_t i) {
  const std::int64_t half = i / 128, part = i % 128 / 32, j = i % 32;
  const int low_byte = byte_at(block, half * 64 + part % 2 * 32 + j);
  const int low = part < 2 ? low_byte & 15 : low_byte >> 4;
  const int high = byte_at(block + 128, half * 32 + j) >> (2 * part) & 3;
  const auto scale = static_cast<std::int8_t>(byte_at(block + 192, i / 16));
  return f16_at(block, 208) * static_cast<float>(scale) *
         static_cast<float>((low | high << 4) - 32);
}

// A scale s for 2^(s - 127), then 16 bytes of e2m1: twice what they stand for are whole numbers.
float mxfp4_at(const std::byte* block, std::int64_t i) {
  constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
  const int scale = byte_at(block, 0), code = nibble_of_32(block + 1, i);
  if (scale == 255) return std::numeric_limits<float>::quiet_NaN();
  const int twice = code >= 8 ? -kTwice[code - 8] : kTwice[code];
  return std::ldexp(static_cast<float>(twice), scale - 128);
}

// One bit of sign, four of exponent (less 7), three of mantissa.
float f8_e4m3_at(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  float value = std::ldexp(static_cast<float>(mantissa + (exponent > 0 ? 8 : 0)),
                           std::max(exponent, 1) - 7 - 3);
  if (exponent == 15 && mantissa == 7) value = std::numeric_limits<float>::quiet_NaN();
  return std::copysign(value, byte >= 128 ? -1.0f : 1.0f);
}

float value_at(Encoding encoding, const std::byte* block, std::int64_t i) {
  switch (encoding) {
    case Encoding::f32: {
      float value = 0;
      std::memcpy(&value, block, sizeof(value));
      return value;
    }
    case Encoding::f16: return f16_at(block, 0);
    case Encoding::bf16: {
      Bf16 value;
      std::memcpy(&value, block, sizeof(value));
      return to_float(value);
    }
    case Encoding::q8_0:
      return f16_at(block, 0) * static_cast<float>(static_cast<std::int8_t>(byte_at(block, 2 + i)));
    case Encoding::q4_0:
      return f16_at(block, 0) * static_cast<float>(nibble_of_32(block + 2, i) - 8);
    case Encoding::q4_1:
      return f16_at(block, 0) * static_cast<float>(nibble_of_32(block + 4, i)) + f16_at(block, 2);
    case Encoding::q5_0: {
      const int value = nibble_of_32(block + 6, i) | bit_of_32(block + 2, i) << 4;
      return f16_at(block, 0) * static_cast<float>(value - 16);
    }
    case Encoding::q5_1: {
      const int value = nibble_of_32(block + 8, i) | bit_of_32(block + 4, i) << 4;
      return f16_at(block, 0) * static_cast<float>(value) + f16_at(block, 2);
    }
    case Encoding::q4_k: {
      const auto [scale, minimum] = part_of_k(block, i / 32);
      return scale * static_cast<float>(nibble_of_k(block + 16, i)) - minimum;
    }
    case Encoding::q5_k: {
      const auto [scale, minimum] = part_of_k(block, i / 32);
      const int high = byte_at(block, 16 + i % 32) >> (i / 32) & 1;
      return scale * static_cast<float>(nibble_of_k(block + 48, i) | high << 4) - minimum;
    }
    case Encoding::q6_k: return q6_k_at(block, i);
    case Encoding::mxfp4_blocks: return mxfp4_at(block, i);
    case Encoding::f8_e4m3: return f8_e4m3_at(byte_at(block, 0));
    case Encoding::i4:
    case Encoding::i32:
    case Encoding::i64:
    case Encoding::mxfp4:
    case Encoding::u8: break;
  }
  return 0;
}

template <typename T>
void decode_to(Encoding encoding, const std::byte* from, std::int64_t elements, T* out) {
  const std::int64_t block = block_elements(encoding);
  for (std::int64_t i = 0; i < elements; ++i) {
    out[i] = from_float<T>(value_at(encoding, from + i / block * block_bytes(encoding), i % block));
  }
}

}  // namespace

void decode_plain(Encoding encoding, const std::byte* from, std::int64_t elements, DType to,
                  void* out) {
  NVLLM_CHECK(elements % block_elements(encoding) == 0, name_of(encoding), " x ", elements);
  switch (to) {
    case DType::f32: return decode_to(encoding, from, elements, static_cast<float*>(out));
    case DType::bf16: return decode_to(encoding, from, elements, static_cast<Bf16*>(out));
    case DType::f16: return decode_to(encoding, from, elements, static_cast<F16*>(out));
    default: NVLLM_CHECK(false, "decode to ", name_of(to));
  }
}

}  // namespace nvllm::model
