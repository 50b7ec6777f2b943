#include "kernels/gemm/cpu/quantized_activations.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels::cpu {
namespace {

using Places = std::array<std::uint8_t, 128>;

template <typename Of>
Places make_places(WeightFormat format, Of&& of) {
  Places places{};
  const int inputs = block_inputs_of(format);
  for (int i = 0; i < inputs; ++i) {
    const BlockPlace place = place_in_block(format, i);
    places[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(of(place.byte, place.shift / 4));
  }
  return places;
}

// Where the inputs of a block are in the order of order_activations.
const std::uint8_t* float_places(WeightFormat format) {
  static const Places fp8 = make_places(WeightFormat::fp8, [](int byte, int) {
    return byte % 16 / 8 * 32 + byte % 2 * 16 + byte / 16 * 4 + byte % 8 / 2;
  });
  static const Places int8 =
      make_places(WeightFormat::int8, [](int byte, int) { return byte % 4 * 16 + byte / 4; });
  static const Places int4 = make_places(
      WeightFormat::int4, [](int byte, int half) { return (byte % 4 * 2 + half) * 16 + byte / 4; });
  return (format == WeightFormat::fp8 ? fp8 : format == WeightFormat::int8 ? int8 : int4).data();
}

// Loads eight inputs starting at `from`, where `count` are left, with zeros after the last one.
template <typename T>
__m256 load_inputs(const T* from, std::int64_t count) {
  if (count >= kLanes) return load8(from);
  return count > 0 ? load_some(from, count) : _mm256_setzero_ps();
}

// A group of a row of x.
struct QuantizedGroup {
  alignas(32) std::int8_t integers[kActivationGroup];
  float scale;
  std::int32_t sums[2];  // of 16 integers each
};

std::int32_t sum4(__m128i dwords) {
  dwords = _mm_add_epi32(dwords, _mm_shuffle_epi32(dwords, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(dwords, _mm_shuffle_epi32(dwords, 0xb1)));
}

// The bits of the largest magnitude; of infinity or NaN, if there is one.
std::int32_t max_bits(const __m256 (&values)[4]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i max = _mm256_setzero_si256();
  for (const __m256 value : values)
    max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(value), magnitude));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

template <typename T>
void quantize(const T* from, std::int64_t count, QuantizedGroup& group) {
  __m256 values[4];
  for (int v = 0; v < 4; ++v) values[v] = load_inputs(from + v * kLanes, count - v * kLanes);
  const float max = std::bit_cast<float>(max_bits(values));
  // A smaller one's inverse is none; infinity and NaN make the scale such.
  constexpr float kMin = 0x1p-119f;
  group.scale = max < kMin ? 0 : max * (1.0f / 127);
  const __m256 inverse = _mm256_set1_ps(max < kMin ? 0 : 127 / max);
  __m256i integers[4];
  for (int v = 0; v < 4; ++v) integers[v] = _mm256_cvtps_epi32(_mm256_mul_ps(values[v], inverse));
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(integers[0], integers[1]),
                                           _mm256_packs_epi32(integers[2], integers[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_store_si256(reinterpret_cast<__m256i*>(group.integers),
                     _mm256_permutevar8x32_epi32(bytes, order));
  for (int half = 0; half < 2; ++half) {
    const __m256i sums = _mm256_add_epi32(integers[2 * half], integers[2 * half + 1]);
    group.sums[half] =
        sum4(_mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
  }
}

// Stores four vectors of dwords as columns of a block: dword t of vector k at 4 t + k.
void store_columns(__m128i (&vectors)[4], std::int8_t* to) {
  const __m128i a = _mm_unpacklo_epi32(vectors[0], vectors[1]);
  const __m128i b = _mm_unpackhi_epi32(vectors[0], vectors[1]);
  const __m128i c = _mm_unpacklo_epi32(vectors[2], vectors[3]);
  const __m128i d = _mm_unpackhi_epi32(vectors[2], vectors[3]);
  auto* const rows = reinterpret_cast<__m128i*>(to);
  _mm_store_si128(rows, _mm_unpacklo_epi64(a, c));
  _mm_store_si128(rows + 1, _mm_unpackhi_epi64(a, c));
  _mm_store_si128(rows + 2, _mm_unpacklo_epi64(b, d));
  _mm_store_si128(rows + 3, _mm_unpackhi_epi64(b, d));
}

__m128i load_integers(const QuantizedGroup& group, int half) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(group.integers) + half);
}

// In the order of a block of int8.
void order_integers(const QuantizedGroup* groups, QuantizedActivations<1>& block) {
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  __m128i steps[4];
  for (int k = 0; k < 4; ++k)
    steps[k] = _mm_shuffle_epi8(load_integers(groups[k / 2], k % 2), order);
  store_columns(steps, block.integers);
}

// In the order of a block of int4: bytes of the inputs 0, 16, 1, 17, ... 7, 23 of a group are low
// halves.
void order_integers(const QuantizedGroup* groups, QuantizedActivations<2>& block) {
  __m128i low[4], high[4];
  for (int k = 0; k < 4; ++k) {
    const __m128i first = load_integers(groups[k], 0), second = load_integers(groups[k], 1);
    low[k] = _mm_unpacklo_epi8(first, second);
    high[k] = _mm_unpackhi_epi8(first, second);
  }
  store_columns(low, block.integers);
  store_columns(high, block.integers + 64);
}

// A row's block from its groups. A group of the weight is 2^group_bits inputs.
template <int kParts, int kZero>
void gather(const QuantizedGroup* groups, int group_bits, QuantizedActivations<kParts>& block) {
  constexpr int kInputs = kParts * 64;
  order_integers(groups, block);
  for (int k = 0; k < 4; ++k)
    block.scales[k] = groups[k * (kInputs / 4) / kActivationGroup].scale * kScaleUnit;
  std::fill(std::begin(block.sums), std::end(block.sums), 0.0f);
  for (int half = 0; half < kInputs / 16; ++half) {
    const QuantizedGroup& group = groups[half / 2];
    block.sums[(half * 16 >> group_bits) * 2 + 1] +=
        group.scale * static_cast<float>(group.sums[half % 2]) * kScaleUnit;
  }
  for (int i = 0; i < 8; i += 2) block.sums[i] = -kZero * block.sums[i + 1];
}

template <typename T, int kParts, int kZero>
void quantize_rows(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                   std::int64_t end, float* prepared) {
  constexpr std::int64_t kInputs = kParts * 64;
  constexpr int kGroups = kInputs / kActivationGroup;
  const int group_bits = std::countr_zero(static_cast<unsigned>(gemm.group));
  for (int row = 0; row < rows; ++row) {
    const T* const from = static_cast<const T*>(gemm.x) + (first_row + row) * gemm.x_stride;
    auto* const blocks = reinterpret_cast<QuantizedActivations<kParts>*>(
        prepared + row * quantized_activation_floats<kParts>(gemm.inputs));
    for (std::int64_t i = begin; i < end; i += kInputs) {
      QuantizedGroup groups[kGroups];
      for (int g = 0; g < kGroups; ++g) {
        const std::int64_t at = i + g * kActivationGroup;
        quantize(from + std::min(at, end), end - at, groups[g]);
      }
      gather<kParts, kZero>(groups, group_bits, blocks[i / kInputs]);
    }
  }
}

template <typename T, WeightFormat kFormat>
void order_rows(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                std::int64_t end, float* prepared) {
  constexpr std::int64_t kInputs = block_inputs_of(kFormat);
  constexpr float kFactor = has_float_values(kFormat) ? 1 : kScaleUnit;
  const std::uint8_t* const places = float_places(kFormat);
  for (int row = 0; row < rows; ++row) {
    const T* const from = static_cast<const T*>(gemm.x) + (first_row + row) * gemm.x_stride;
    float* to = prepared + row * float_activation_floats<kFormat>(gemm.inputs);
    for (std::int64_t i = begin; i < end; i += kInputs) {
      float floats[kInputs];
      for (int v = 0; v < kInputs; v += kLanes) {
        const __m256 values = load_inputs(from + std::min(i + v, end), end - i - v);
        store8(floats + v, _mm256_mul_ps(values, _mm256_set1_ps(kFactor)));
      }
      for (int v = 0; v < kInputs; ++v) to[i + places[v]] = floats[v];
    }
  }
}

}  // namespace

template <int kParts, int kZero>
void quantize_activations(const GemmTask& gemm, std::int64_t first_row, int rows,
                          std::int64_t begin, std::int64_t end, float* prepared) {
  const auto quantize = gemm.dtype == DType::f32    ? quantize_rows<float, kParts, kZero>
                        : gemm.dtype == DType::bf16 ? quantize_rows<Bf16, kParts, kZero>
                                                    : quantize_rows<F16, kParts, kZero>;
  quantize(gemm, first_row, rows, begin, end, prepared);
}

template <WeightFormat kFormat>
void order_activations(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                       std::int64_t end, float* prepared) {
  const auto order = gemm.dtype == DType::f32    ? order_rows<float, kFormat>
                     : gemm.dtype == DType::bf16 ? order_rows<Bf16, kFormat>
                                                 : order_rows<F16, kFormat>;
  order(gemm, first_row, rows, begin, end, prepared);
}

using Prepare = void(const GemmTask&, std::int64_t, int, std::int64_t, std::int64_t, float*);
template Prepare quantize_activations<1, 0>;
template Prepare quantize_activations<1, 128>;
template Prepare quantize_activations<2, 0>;
template Prepare quantize_activations<2, 8>;
template Prepare order_activations<WeightFormat::fp8>;
template Prepare order_activations<WeightFormat::int8>;
template Prepare order_activations<WeightFormat::int4>;
template Prepare order_activations<WeightFormat::mxfp4>;

}  // namespace nvllm::kernels::cpu
