#include "kernels/gemm/quantized_weight.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "device/e4m3.h"

namespace nvllm::kernels {
namespace {

constexpr int kThreads = 4, kThreadBytes = 16;  // that share a block

// The stored value that means 0, in formats of integers.
int zero_of(WeightFormat format) {
  return format == WeightFormat::int8 ? 128 : 8;
}

std::array<BlockPlace, 128> make_places(WeightFormat format) {
  std::array<BlockPlace, 128> places{};
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int word = 0; word < kThreadBytes / 4; ++word) {
      const int first = thread * kThreadBytes + word * 4;  // byte
      if (!has_nibbles(format)) {
        constexpr std::array kOf = {0, 1, 8, 9};
        for (int e = 0; e < 4; ++e) places[16 * word + 2 * thread + kOf[e]] = {first + e, 0};
        continue;
      }
      for (int n = 0; n < 8; ++n) {
        const int pair = n % 4;
        const int input = 32 * word + 16 * (pair / 2) + 8 * (pair % 2) + 2 * thread + n / 4;
        places[input] = {first + n / 2, n % 2 * 4};
      }
    }
  }
  return places;
}

const std::array<BlockPlace, 128>& places_of(WeightFormat format) {
  static const auto bytes = make_places(WeightFormat::fp8);
  static const auto nibbles = make_places(WeightFormat::int4);
  return has_nibbles(format) ? nibbles : bytes;
}

__m128i load_16(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Words k of all four threads, of k = 0 to 3, to all words of each thread.
void store_by_thread(__m128i k0, __m128i k1, __m128i k2, __m128i k3, std::byte* out) {
  const __m128i low_01 = _mm_unpacklo_epi32(k0, k1), low_23 = _mm_unpacklo_epi32(k2, k3);
  const __m128i high_01 = _mm_unpackhi_epi32(k0, k1), high_23 = _mm_unpackhi_epi32(k2, k3);
  auto* const to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_unpacklo_epi64(low_01, low_23));
  _mm_storeu_si128(to + 1, _mm_unpackhi_epi64(low_01, low_23));
  _mm_storeu_si128(to + 2, _mm_unpacklo_epi64(high_01, high_23));
  _mm_storeu_si128(to + 3, _mm_unpackhi_epi64(high_01, high_23));
}

// A block of 64 bytes, and one of 128 integers of 4 bits, to 64 bytes.
void pack_bytes(const std::uint8_t* in, std::byte* out) {
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const auto word = [&](int k) { return _mm_shuffle_epi8(load_16(in + 16 * k), order); };
  store_by_thread(word(0), word(1), word(2), word(3), out);
}
void pack_nibbles(const std::uint8_t* in, std::byte* out) {
  // A byte of a word has an input of the first half of a step, and the one 8 further.
  const auto word = [&](int k) {
    const __m128i first = load_16(in + 32 * k), second = load_16(in + 32 * k + 16);
    const __m128i low = _mm_unpacklo_epi8(first, second), high = _mm_unpackhi_epi8(first, second);
    return _mm_or_si128(low, _mm_slli_epi16(high, 4));
  };
  store_by_thread(word(0), word(1), word(2), word(3), out);
}

// The code of the number of e2m1 that is nearest, of two the even one.
std::uint8_t nearest_e2m1(float value) {
  const float magnitude = std::fabs(value);
  std::uint8_t code = 0;
  while (code < 7) {
    const float middle = (kE2m1[code] + kE2m1[code + 1]) / 2;
    if (magnitude < middle || (magnitude == middle && code % 2 == 0)) break;
    ++code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

// The smallest power of two, times which 6 is at least `largest`; NaN of what is no number.
float mxfp4_scale(float largest) {
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  if (largest == 0) return 0x1p-127f;
  int exponent = 0;
  const float fraction = std::frexp(largest / 6, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0f, std::clamp(fraction == 0.5f ? exponent - 1 : exponent, -127, 127));
}

F16 to_unit(float value) {
  return from_float<F16>(value / kScaleUnit);
}

// A weight of an integer, from zero on, in a group of an output.
float from_integer(int integer, const std::byte* scales, std::int64_t group) {
  F16 both[2];
  std::memcpy(both, scales + group * sizeof(both), sizeof(both));
  return to_float(both[0]) * kScaleUnit * static_cast<float>(integer) +
         to_float(both[1]) * kScaleUnit;
}

}  // namespace

const char* name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return "float32";
    case WeightFormat::bf16: return "bfloat16";
    case WeightFormat::f16: return "float16";
    case WeightFormat::fp8: return "fp8";
    case WeightFormat::int8: return "int8";
    case WeightFormat::int4: return "int4";
    case WeightFormat::mxfp4: return "mxfp4";
  }
  return "?";
}

void unexpected_format(WeightFormat format, const char* what) {
  NVLLM_CHECK(false, what, ": a weight in ", name_of(format), " cannot come here");
}

float e8m0_to_float(std::uint8_t byte) {
  if (byte == 0) return 0x1p-127f;
  const std::uint32_t bits = byte == 255 ? 0x7fc00000u : std::uint32_t{byte} << 23;
  return std::bit_cast<float>(bits);
}

std::uint8_t float_to_e8m0(float power) {
  if (std::isnan(power)) return 255;
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(power) >> 23);
}

float fp8_to_float(std::uint8_t byte) {
  return to_float(E4m3{byte});
}

std::uint8_t float_to_fp8(float value) {
  return from_float<E4m3>(value).bits;
}

BlockPlace place_in_block(WeightFormat format, int input) {
  return places_of(format)[static_cast<std::size_t>(input)];
}

void pack_values(const QuantizedShape& shape, const std::uint8_t* values, std::byte* out) {
  const auto pack = has_nibbles(shape.format) ? pack_nibbles : pack_bytes;
  const std::int64_t in_block = shape.block_inputs(), whole = shape.inputs / in_block;
  for (std::int64_t block = 0; block < whole; ++block) {
    pack(values + block * in_block, out + block * kQuantizedBlockBytes);
  }
  if (whole == shape.row_blocks()) return;
  std::array<std::uint8_t, 128> padded{};
  std::memcpy(padded.data(), values + whole * in_block,
              static_cast<std::size_t>(shape.inputs - whole * in_block));
  pack(padded.data(), out + whole * kQuantizedBlockBytes);
}

void pack_scales(const QuantizedShape& shape, std::span<const float> scales,
                 std::span<const float> offsets, std::byte* out) {
  for (std::size_t group = 0; group < static_cast<std::size_t>(shape.groups()); ++group) {
    const float scale = group < scales.size() ? scales[group] : 0;
    switch (shape.format) {
      case WeightFormat::mxfp4: out[group] = std::byte{float_to_e8m0(scale)}; break;
      case WeightFormat::fp8:
        std::memcpy(out + group * sizeof(float), &scale, sizeof(float));
        break;
      case WeightFormat::int8:
      case WeightFormat::int4: {
        const float offset = group < offsets.size() ? offsets[group] : 0;
        const F16 both[] = {to_unit(scale), to_unit(offset)};
        std::memcpy(out + group * sizeof(both), both, sizeof(both));
        break;
      }
      case WeightFormat::f32:
      case WeightFormat::bf16:
      case WeightFormat::f16: unexpected_format(shape.format, "pack_scales");
    }
  }
}

void pack_row(const QuantizedShape& shape, const QuantizedRow& row, std::byte* values,
              std::byte* scales) {
  NVLLM_CHECK_EQ(row.values.size(), static_cast<std::size_t>(shape.inputs));
  NVLLM_CHECK_LE(static_cast<std::size_t>(shape.inputs),
                 row.scales.size() * static_cast<std::size_t>(shape.group));
  pack_values(shape, row.values.data(), values);
  pack_scales(shape, row.scales, row.offsets, scales);
}

void dequantize_row(const QuantizedShape& shape, const std::byte* values, const std::byte* scales,
                    float* out) {
  const auto& places = places_of(shape.format);
  const std::int64_t in_block = shape.block_inputs();
  for (std::int64_t i = 0; i < shape.inputs; ++i) {
    const BlockPlace place = places[static_cast<std::size_t>(i % in_block)];
    const auto byte =
        static_cast<std::uint8_t>(values[i / in_block * kQuantizedBlockBytes + place.byte]);
    const std::int64_t group = i / shape.group;
    const int nibble = byte >> place.shift & 15;
    switch (shape.format) {
      case WeightFormat::mxfp4:
        out[i] = e8m0_to_float(static_cast<std::uint8_t>(scales[group])) * kE2m1[nibble];
        break;
      case WeightFormat::fp8: {
        float scale = 0;
        std::memcpy(&scale, scales + group * sizeof(float), sizeof(float));
        out[i] = scale * fp8_to_float(byte);
        break;
      }
      case WeightFormat::int8:
        out[i] = from_integer(byte - zero_of(shape.format), scales, group);
        break;
      case WeightFormat::int4:
        out[i] = from_integer(nibble - zero_of(shape.format), scales, group);
        break;
      case WeightFormat::f32:
      case WeightFormat::bf16:
      case WeightFormat::f16: unexpected_format(shape.format, "dequantize_row");
    }
  }
}

namespace {

QuantizedRow quantize_mxfp4(const QuantizedShape& shape, std::span<const float> weights) {
  QuantizedRow row;
  const auto group = static_cast<std::size_t>(shape.group);
  for (std::size_t begin = 0; begin < weights.size(); begin += group) {
    const std::span some = weights.subspan(begin, std::min(group, weights.size() - begin));
    float largest = 0;
    for (const float weight : some) {
      largest = weight == weight ? std::max(largest, std::fabs(weight)) : weight;
      if (largest != largest) break;
    }
    const float scale = mxfp4_scale(largest);
    for (const float weight : some) row.values.push_back(nearest_e2m1(weight / scale));
    row.scales.push_back(scale);
  }
  return row;
}

}  // namespace

QuantizedRow quantize_row(const QuantizedShape& shape, std::span<const float> weights) {
  switch (shape.format) {
    case WeightFormat::mxfp4: return quantize_mxfp4(shape, weights);
    case WeightFormat::fp8:
    case WeightFormat::int8:
    case WeightFormat::int4: break;
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16: unexpected_format(shape.format, "quantize_row");
  }
  const bool fp8 = shape.format == WeightFormat::fp8;
  const int zero = fp8 ? 0 : zero_of(shape.format);
  const float max_value = fp8 ? kMaxFp8 : static_cast<float>(zero - 1);
  QuantizedRow row;
  row.values.resize(weights.size());
  for (std::size_t begin = 0; begin < weights.size();
       begin += static_cast<std::size_t>(shape.group)) {
    const std::size_t end = std::min(begin + static_cast<std::size_t>(shape.group), weights.size());
    float largest = 0;
    bool numbers = true;
    for (std::size_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::fabs(weights[i]));
      numbers &= weights[i] == weights[i];
    }
    float scale = largest / max_value;
    // No integer is NaN. A scale can be, so that NaN shows in what the weight is multiplied with.
    if (!fp8 && !numbers) scale = std::numeric_limits<float>::quiet_NaN();
    // Integers are rounded with the scale as it will be read.
    if (!fp8) scale = to_float(to_unit(scale)) * kScaleUnit;
    const float inverse = scale > 0 ? 1 / scale : 0;
    for (std::size_t i = begin; i < end; ++i) {
      const float value = weights[i] * inverse;
      if (fp8) {
        row.values[i] = float_to_fp8(value);
      } else {
        // This order of arguments makes the lower limit of NaN.
        const float integer = std::max(-max_value - 1, std::min(std::nearbyint(value), max_value));
        row.values[i] = static_cast<std::uint8_t>(static_cast<int>(integer) + zero);
      }
    }
    row.scales.push_back(scale);
    if (!fp8) row.offsets.push_back(0);
  }
  return row;
}

}  // namespace nvllm::kernels
