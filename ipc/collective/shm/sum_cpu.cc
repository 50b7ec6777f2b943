#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "ipc/collective/shm/copy_methods.h"

// The build targets x86-64-v3, so AVX2 and F16C are available. Wider vectors do not help: the sum
// is memory-bound. AVX512-BF16's conversion would also flush denormals, and so yield other bits.
namespace nvllm::ipc {
namespace {

constexpr std::size_t kLanes = 8;

// Turns -0 into +0.
__m128i without_negative_zero(__m128i halves) {
  const __m128i negative_zero = _mm_set1_epi16(static_cast<short>(0x8000));
  return _mm_andnot_si128(_mm_cmpeq_epi16(halves, negative_zero), halves);
}

__m256 load8(const float* from) {
  return _mm256_loadu_ps(from);
}

__m256 load8(const Bf16* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

__m256 load8(const F16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

struct Rounded16 {
  __m128i halves;
};

// A float32 sum that starts at +0 is never -0; only rounding to a 16-bit type can make it so.
__m256 round8(const float*, __m256 sum) {
  return sum;
}

// Rounds like from_float<Bf16>.
Rounded16 round8(const Bf16*, __m256 sum) {
  const __m256i bits = _mm256_castps_si256(sum);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet_nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(nearest), _mm256_castsi256_ps(quiet_nan), is_nan));
  const __m256i upper = _mm256_srli_epi32(chosen, 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0xd8);
  return {without_negative_zero(_mm256_castsi256_si128(packed))};
}

Rounded16 round8(const F16*, __m256 sum) {
  return {without_negative_zero(_mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT))};
}

void store8(float* to, __m256 values) {
  _mm256_storeu_ps(to, values);
}

template <typename T>
void store8(T* to, Rounded16 values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), values.halves);
}

// Sums two times 16 bfloat16 elements, one cache line. Nothing is unpacked: odd elements are the
// upper halves of 32-bit lanes, even ones need a shift. Returns false, without storing anything, if
// a sum is NaN: its bits need round8.
constexpr std::size_t kPair = 2 * kLanes;

__m256i round_to_upper_half(__m256 sum) {
  const __m256i bits = _mm256_castps_si256(sum);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

template <int kSources>
bool sum_two_pairs(Bf16* to, const void* const* sources, int count, std::size_t first) {
  const int ranks = kSources > 0 ? kSources : count;
  const __m256i upper_halves = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  __m256 even[2] = {}, odd[2] = {};
  for (int rank = 0; rank < ranks; ++rank) {
    const Bf16* source = static_cast<const Bf16*>(sources[rank]) + first;
    for (std::size_t v = 0; v < 2; ++v) {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + v * kPair));
      const __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
      const __m256 high = _mm256_castsi256_ps(_mm256_and_si256(both, upper_halves));
      // Not added to +0: a sum of -0 becomes +0 below anyway.
      even[v] = rank == 0 ? low : _mm256_add_ps(even[v], low);
      odd[v] = rank == 0 ? high : _mm256_add_ps(odd[v], high);
    }
  }
  const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(even[0], odd[0], _CMP_UNORD_Q),
                                  _mm256_cmp_ps(even[1], odd[1], _CMP_UNORD_Q));
  if (_mm256_movemask_ps(nan) != 0) return false;
  for (std::size_t v = 0; v < 2; ++v) {
    const __m256i lower = _mm256_srli_epi32(round_to_upper_half(even[v]), 16);
    const __m256i halves = _mm256_blend_epi16(lower, round_to_upper_half(odd[v]), 0xaa);
    // From zeros, or rounded from a denormal.
    const __m256i negative_zero = _mm256_set1_epi16(static_cast<short>(0x8000));
    const __m256i result = _mm256_andnot_si256(_mm256_cmpeq_epi16(halves, negative_zero), halves);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + v * kPair), result);
  }
  return true;
}

// kSources == 0: `count` sources.
template <typename T, int kSources>
void sum(T* to, const void* const* sources, int count, std::size_t elements) {
  constexpr std::size_t kUnroll = 4;
  const int ranks = kSources > 0 ? kSources : count;
  auto block = [&]<std::size_t kVectors>(std::size_t i) {
    __m256 sums[kVectors];
    for (auto& each : sums) each = _mm256_setzero_ps();
    for (int rank = 0; rank < ranks; ++rank) {
      const T* source = static_cast<const T*>(sources[rank]) + i;
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[v] = _mm256_add_ps(sums[v], load8(source + v * kLanes));
      }
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      store8(to + i + v * kLanes, round8(to, sums[v]));
    }
  };
  std::size_t i = 0;
  if constexpr (std::is_same_v<T, Bf16>) {
    for (; i + 2 * kPair <= elements; i += 2 * kPair) {
      if (!sum_two_pairs<kSources>(to + i, sources, ranks, i)) {
        for (std::size_t v = 0; v < 2 * kPair; v += kLanes) block.template operator()<1>(i + v);
      }
    }
  }
  for (; i + kUnroll * kLanes <= elements; i += kUnroll * kLanes) {
    block.template operator()<kUnroll>(i);
  }
  for (; i + kLanes <= elements; i += kLanes) block.template operator()<1>(i);
  if (i == elements) return;

  // The rest uses the same instructions, so that no bit depends on the position.
  const std::size_t rest = elements - i;
  __m256 total = _mm256_setzero_ps();
  T padded[kLanes] = {};
  for (int rank = 0; rank < ranks; ++rank) {
    std::memcpy(padded, static_cast<const T*>(sources[rank]) + i, rest * sizeof(T));
    total = _mm256_add_ps(total, load8(padded));
  }
  store8(padded, round8(to, total));
  std::memcpy(to + i, padded, rest * sizeof(T));
}

template <typename T>
void sum(void* to, std::span<const void* const> sources, std::size_t elements) {
  const int count = static_cast<int>(sources.size());
  T* first = static_cast<T*>(to);
  if (count == 2) {
    sum<T, 2>(first, sources.data(), count, elements);
  } else {
    sum<T, 0>(first, sources.data(), count, elements);
  }
}

}  // namespace

void sum_cpu(DType type, void* to, std::span<const void* const> sources, std::size_t elements) {
  switch (type) {
    case DType::f32: sum<float>(to, sources, elements); break;
    case DType::bf16: sum<Bf16>(to, sources, elements); break;
    case DType::f16: sum<F16>(to, sources, elements); break;
    default: NVLLM_CHECK(false, "no sum of ", name_of(type));
  }
}

}  // namespace nvllm::ipc
