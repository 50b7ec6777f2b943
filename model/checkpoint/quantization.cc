// decode(): dequantizes blocks, eight floats at a time, with AVX2, which this program requires.
//
// Every encoding is first unpacked to small signed integers; a value is integer x scale + offset.
// integer x scale is exact in float32 (a scale has 11 bits, a scale of a K block 19, an integer at
// most 8), so a fused multiply-add changes nothing: as in the reference, there is at most one
// rounding.
#include <immintrin.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

__m256i load_32(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

__m128i load_16(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

float load_f16(const std::byte* from) {
  return _cvtsh_ss(load<std::uint16_t>(from));
}

// Stores 16 floats, rounded as from_float() rounds.
void store(float* out, __m256 low, __m256 high) {
  _mm256_storeu_ps(out, low);
  _mm256_storeu_ps(out + 8, high);
}

// The bits of bfloat16s in the lower halves of 32-bit lanes.
__m256i to_bf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i to_add = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, to_add), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

void store(Bf16* out, __m256 low, __m256 high) {
  // Packing works within 128-bit halves, so the quarters must be put in order again.
  const __m256i packed = _mm256_packus_epi32(to_bf16(low), to_bf16(high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(packed, 0xd8));
}

void store(F16* out, __m256 low, __m256 high) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  auto* const to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm256_cvtps_ph(low, kNearest));
  _mm_storeu_si128(to + 1, _mm256_cvtps_ph(high, kNearest));
}

__m256 to_float(__m128i eight_bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes));
}

// 16 integers x scale + offset.
template <typename T>
void emit_16(T* out, __m128i integers, __m256 scale, __m256 offset) {
  store(out, _mm256_fmadd_ps(to_float(integers), scale, offset),
        _mm256_fmadd_ps(to_float(_mm_srli_si128(integers, 8)), scale, offset));
}

template <typename T>
void emit_32(T* out, __m256i integers, float scale, float offset) {
  const __m256 scales = _mm256_set1_ps(scale), offsets = _mm256_set1_ps(offset);
  emit_16(out, _mm256_castsi256_si128(integers), scales, offsets);
  emit_16(out + 16, _mm256_extracti128_si256(integers, 1), scales, offsets);
}

// Where decode_integers() leaves its results: bytes of signed integers, and a scale and an offset
// of each 16 of them.
struct IntegerOut {
  std::int8_t* values;
  float *scales, *offsets;

  IntegerOut operator+(std::int64_t n) const {
    return {values + n, scales + n / 16, offsets + n / 16};
  }
};

void emit_16(IntegerOut out, __m128i integers, __m256 scale, __m256 offset) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out.values), integers);
  *out.scales = _mm256_cvtss_f32(scale);
  *out.offsets = _mm256_cvtss_f32(offset);
}

void emit_32(IntegerOut out, __m256i integers, float scale, float offset) {
  const __m256 scales = _mm256_set1_ps(scale), offsets = _mm256_set1_ps(offset);
  emit_16(out, _mm256_castsi256_si128(integers), scales, offsets);
  emit_16(out + 16, _mm256_extracti128_si256(integers, 1), scales, offsets);
}

// Adding -0 changes nothing, not even the sign of a zero.
constexpr float kNoOffset = -0.0f;

__m256i low_nibbles(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

__m256i high_nibbles(__m256i bytes) {
  return low_nibbles(_mm256_srli_epi16(bytes, 4));
}

// 16 bytes hold integers 0..15 in their low halves, 16..31 in their high ones.
__m256i nibbles_of_32(const std::byte* from) {
  const __m128i bytes = load_16(from);
  return low_nibbles(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes));
}

// Bit i of 32 becomes 16 in byte i.
__m256i fifth_bits_of_32(const std::byte* from) {
  const __m256i bits = _mm256_set1_epi32(load<std::int32_t>(from));
  const __m256i spread = _mm256_shuffle_epi8(  // byte i / 8 into byte i
      bits, _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i mask = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask);
  return _mm256_and_si256(is_set, _mm256_set1_epi8(16));
}

template <typename Out>
void decode_block_q8_0(const std::byte* block, Out out) {
  emit_32(out, load_32(block + 2), load_f16(block), kNoOffset);
}

template <typename Out>
void decode_block_q4_0(const std::byte* block, Out out) {
  const __m256i integers = _mm256_sub_epi8(nibbles_of_32(block + 2), _mm256_set1_epi8(8));
  emit_32(out, integers, load_f16(block), kNoOffset);
}

template <typename Out>
void decode_block_q4_1(const std::byte* block, Out out) {
  emit_32(out, nibbles_of_32(block + 4), load_f16(block), load_f16(block + 2));
}

template <typename Out>
void decode_block_q5_0(const std::byte* block, Out out) {
  const __m256i integers = _mm256_or_si256(nibbles_of_32(block + 6), fifth_bits_of_32(block + 2));
  emit_32(out, _mm256_sub_epi8(integers, _mm256_set1_epi8(16)), load_f16(block), kNoOffset);
}

template <typename Out>
void decode_block_q5_1(const std::byte* block, Out out) {
  const __m256i integers = _mm256_or_si256(nibbles_of_32(block + 8), fifth_bits_of_32(block + 4));
  emit_32(out, integers, load_f16(block), load_f16(block + 2));
}

// Scales and minima of the 8 parts of a Q4_K or Q5_K block, packed as part_of_k() of the reference
// describes.
struct Parts {
  std::array<std::uint8_t, 8> scales, minima;
};
Parts parts_of_k(const std::byte* packed) {
  constexpr std::uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
  const auto a = load<std::uint32_t>(packed), b = load<std::uint32_t>(packed + 4),
             c = load<std::uint32_t>(packed + 8);
  const std::array<std::uint32_t, 2> scales{a & kSix, (c & kFour) | (a >> 6 & kTwo) << 4};
  const std::array<std::uint32_t, 2> minima{b & kSix, (c >> 4 & kFour) | (b >> 6 & kTwo) << 4};
  Parts parts;
  std::memcpy(parts.scales.data(), scales.data(), 8);
  std::memcpy(parts.minima.data(), minima.data(), 8);
  return parts;
}

// Two parts: the low and the high halves of 32 bytes; `fifth`: bits of value 16 for each.
template <typename Out>
void emit_parts(Out out, const std::byte* block, const Parts& parts, int first, __m256i nibbles,
                __m256i low_fifth, __m256i high_fifth) {
  const float d = load_f16(block), minimum = load_f16(block + 2);
  emit_32(out, _mm256_or_si256(low_nibbles(nibbles), low_fifth),
          d * static_cast<float>(parts.scales[first]),
          -(minimum * static_cast<float>(parts.minima[first])));
  emit_32(out + 32, _mm256_or_si256(high_nibbles(nibbles), high_fifth),
          d * static_cast<float>(parts.scales[first + 1]),
          -(minimum * static_cast<float>(parts.minima[first + 1])));
}

template <typename Out>
void decode_block_q4_k(const std::byte* block, Out out) {
  const Parts parts = parts_of_k(block + 4);
  const __m256i zero = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    emit_parts(out + 64 * i, block, parts, 2 * i, load_32(block + 16 + 32 * i), zero, zero);
  }
}

template <typename Out>
void decode_block_q5_k(const std::byte* block, Out out) {
  const Parts parts = parts_of_k(block + 4);
  // Bit p of byte j belongs to value j of part p.
  const __m256i fifths = load_32(block + 16);
  const auto fifth = [&](int part) {
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(1 << part));
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(fifths, mask), mask);
    return _mm256_and_si256(is_set, _mm256_set1_epi8(16));
  };
  for (int i = 0; i < 4; ++i) {
    emit_parts(out + 64 * i, block, parts, 2 * i, load_32(block + 48 + 32 * i), fifth(2 * i),
               fifth(2 * i + 1));
  }
}

// Half a block: 128 integers out of 64 bytes of low nibbles and 32 of upper bits.
template <typename Out>
void decode_half_q6_k(const std::byte* low, const std::byte* high, const std::byte* scales, float d,
                      Out out) {
  const __m256i low_0 = load_32(low), low_1 = load_32(low + 32), upper = load_32(high);
  const __m256i nibbles[4] = {low_nibbles(low_0), low_nibbles(low_1), high_nibbles(low_0),
                              high_nibbles(low_1)};
  for (int part = 0; part < 4; ++part) {
    const __m256i two_bits =
        _mm256_and_si256(_mm256_srli_epi16(upper, 2 * part), _mm256_set1_epi8(3));
    const __m256i integers = _mm256_sub_epi8(
        _mm256_or_si256(nibbles[part], _mm256_slli_epi16(two_bits, 4)), _mm256_set1_epi8(32));
    const auto scale = [&](int i) {
      return _mm256_set1_ps(d * static_cast<float>(load<std::int8_t>(scales + 2 * part + i)));
    };
    const __m256 none = _mm256_set1_ps(kNoOffset);
    emit_16(out + 32 * part, _mm256_castsi256_si128(integers), scale(0), none);
    emit_16(out + 32 * part + 16, _mm256_extracti128_si256(integers, 1), scale(1), none);
  }
}

template <typename Out>
void decode_block_q6_k(const std::byte* block, Out out) {
  const float d = load_f16(block + 208);
  decode_half_q6_k(block, block + 128, block + 192, d, out);
  decode_half_q6_k(block + 64, block + 160, block + 200, d, out + 128);
}

// Twice e2m1's numbers by their four bits, which are whole.
__m256i twice_e2m1(__m256i codes) {
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

// Half of the power of two that an e8m0 stands for; 255 stands for NaN.
float half_of_e8m0(std::byte scale) {
  const auto byte = std::to_integer<std::uint32_t>(scale);
  if (byte == 255) return std::numeric_limits<float>::quiet_NaN();
  // Below 2 it is no normal number: 2^-128 or 2^-127.
  return std::bit_cast<float>(byte < 2 ? 0x200000U << byte : (byte - 1) << 23);
}

template <typename Out>
void decode_block_mxfp4(const std::byte* block, Out out) {
  emit_32(out, twice_e2m1(nibbles_of_32(block + 1)), half_of_e8m0(block[0]), kNoOffset);
}

// 16 dense elements as floats.
void load_floats(const float*, const std::byte* from, __m256& low, __m256& high) {
  low = _mm256_castsi256_ps(load_32(from));
  high = _mm256_castsi256_ps(load_32(from + 32));
}

void load_floats(const F16*, const std::byte* from, __m256& low, __m256& high) {
  low = _mm256_cvtph_ps(load_16(from));
  high = _mm256_cvtph_ps(load_16(from + 16));
}

void load_floats(const Bf16*, const std::byte* from, __m256& low, __m256& high) {
  const auto widen = [](__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  };
  low = widen(load_16(from));
  high = widen(load_16(from + 16));
}

// FP8 with 4 bits of exponent and 3 of mantissa, without infinities; 0x7f and 0xff are NaN.
struct F8E4m3 {
  std::uint8_t bits = 0;
};

// The bits of 8 of them, in 32-bit lanes, as floats: in place, the exponent is 120 too small.
__m256 widen_f8(__m256i bits) {
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f));
  const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                                     _mm256_set1_ps(0x1p120f));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x80)), 24);
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_or_si256(sign, nan)));
}

float to_float(F8E4m3 value) {
  return _mm256_cvtss_f32(widen_f8(_mm256_set1_epi32(value.bits)));
}

void load_floats(const F8E4m3*, const std::byte* from, __m256& low, __m256& high) {
  const __m128i bytes = load_16(from);
  low = widen_f8(_mm256_cvtepu8_epi32(bytes));
  high = widen_f8(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}

template <typename From, typename To>
void decode_dense(const std::byte* from, std::int64_t elements, To* out) {
  if constexpr (std::is_same_v<From, To>) {
    if (elements > 0) std::memcpy(out, from, static_cast<std::size_t>(elements) * sizeof(To));
    return;
  }
  constexpr const From* kType = nullptr;
  __m256 low, high;
  std::int64_t i = 0;
  for (; i + 16 <= elements; i += 16) {
    load_floats(kType, from + i * static_cast<std::int64_t>(sizeof(From)), low, high);
    store(out + i, low, high);
  }
  for (; i < elements; ++i) {
    const auto value = load<From>(from + i * static_cast<std::int64_t>(sizeof(From)));
    using nvllm::to_float;
    out[i] = from_float<To>(to_float(value));
  }
}

template <typename Out, void (*decode_block)(const std::byte*, Out)>
void decode_blocks(Encoding encoding, const std::byte* from, std::int64_t elements, Out out) {
  const std::int64_t block = block_elements(encoding), bytes = block_bytes(encoding);
  for (std::int64_t i = 0; i < elements / block; ++i)
    decode_block(from + i * bytes, out + i * block);
}

// Whether the encoding is one of blocks with scales in them.
template <typename Out>
bool decode_scaled_blocks(Encoding e, const std::byte* from, std::int64_t n, Out out) {
  switch (e) {
    case Encoding::q8_0: decode_blocks<Out, decode_block_q8_0<Out>>(e, from, n, out); return true;
    case Encoding::q4_0: decode_blocks<Out, decode_block_q4_0<Out>>(e, from, n, out); return true;
    case Encoding::q4_1: decode_blocks<Out, decode_block_q4_1<Out>>(e, from, n, out); return true;
    case Encoding::q5_0: decode_blocks<Out, decode_block_q5_0<Out>>(e, from, n, out); return true;
    case Encoding::q5_1: decode_blocks<Out, decode_block_q5_1<Out>>(e, from, n, out); return true;
    case Encoding::q4_k: decode_blocks<Out, decode_block_q4_k<Out>>(e, from, n, out); return true;
    case Encoding::q5_k: decode_blocks<Out, decode_block_q5_k<Out>>(e, from, n, out); return true;
    case Encoding::q6_k: decode_blocks<Out, decode_block_q6_k<Out>>(e, from, n, out); return true;
    case Encoding::mxfp4_blocks:
      decode_blocks<Out, decode_block_mxfp4<Out>>(e, from, n, out);
      return true;
    default: return false;
  }
}

template <typename T>
void decode_to(Encoding e, const std::byte* from, std::int64_t n, void* to) {
  auto* const out = static_cast<T*>(to);
  switch (e) {
    case Encoding::f32: return decode_dense<float>(from, n, out);
    case Encoding::f16: return decode_dense<F16>(from, n, out);
    case Encoding::bf16: return decode_dense<Bf16>(from, n, out);
    case Encoding::f8_e4m3: return decode_dense<F8E4m3>(from, n, out);
    default: NVLLM_CHECK(decode_scaled_blocks(e, from, n, out), "decode ", name_of(e));
  }
}

}  // namespace

void decode(Encoding encoding, const std::byte* from, std::int64_t elements, DType to, void* out) {
  NVLLM_CHECK(elements % block_elements(encoding) == 0, name_of(encoding), " x ", elements);
  switch (to) {
    case DType::f32: return decode_to<float>(encoding, from, elements, out);
    case DType::bf16: return decode_to<Bf16>(encoding, from, elements, out);
    case DType::f16: return decode_to<F16>(encoding, from, elements, out);
    default: NVLLM_CHECK(false, "decode to ", name_of(to));
  }
}

void decode_integers(Encoding encoding, const std::byte* from, std::int64_t elements,
                     std::int8_t* values, float* scales, float* offsets) {
  NVLLM_CHECK(elements % block_elements(encoding) == 0, name_of(encoding), " x ", elements);
  NVLLM_CHECK(decode_scaled_blocks(encoding, from, elements, IntegerOut{values, scales, offsets}),
              "decode ", name_of(encoding));
}

}  // namespace nvllm::model
