#include "ipc/collective/sum_cpu.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "base/check.h"

// The build asks for x86-64-v3, so AVX2 and F16C are there. Wider vectors do not pay: the sum waits
// for memory. AVX512-BF16's conversion would also flush denormals, and so give other bits.
namespace nvllm::ipc {
namespace {

constexpr std::size_t kLanes = 8;

// -0 becomes +0.
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

// A sum that starts at +0 is never -0, unless rounding makes it so: only the 16-bit types can.
__m256 round8(const float*, __m256 sum) {
  return sum;
}

// As from_float<Bf16>.
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

// Past the caches; `to` is aligned to the vector. ThreadSanitizer does not see such stores.
#if defined(__SANITIZE_THREAD__)
constexpr bool kStreams = false;
#else
constexpr bool kStreams = true;
#endif

void stream8(float* to, __m256 values) {
  if constexpr (kStreams) {
    _mm256_stream_ps(to, values);
  } else {
    store8(to, values);
  }
}

template <typename T>
void store8(T* to, Rounded16 values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), values.halves);
}

template <typename T>
void stream8(T* to, Rounded16 values) {
  if constexpr (kStreams) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), values.halves);
  } else {
    store8(to, values);
  }
}

// kSources == 0: as many as there are.
template <typename T, int kSources>
void sum(T* to, T* also_to, const void* const* sources, int count, std::size_t elements) {
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
      const auto rounded = round8(to, sums[v]);
      store8(to + i + v * kLanes, rounded);
      if (also_to != nullptr) stream8(also_to + i + v * kLanes, rounded);
    }
  };
  std::size_t i = 0;
  for (; i + kUnroll * kLanes <= elements; i += kUnroll * kLanes) {
    block.template operator()<kUnroll>(i);
  }
  for (; i + kLanes <= elements; i += kLanes) block.template operator()<1>(i);
  if (i == elements) return;

  // The rest goes through the same instructions, so that no bit depends on the position.
  const std::size_t rest = elements - i;
  __m256 total = _mm256_setzero_ps();
  T padded[kLanes] = {};
  for (int rank = 0; rank < ranks; ++rank) {
    std::memcpy(padded, static_cast<const T*>(sources[rank]) + i, rest * sizeof(T));
    total = _mm256_add_ps(total, load8(padded));
  }
  store8(padded, round8(to, total));
  std::memcpy(to + i, padded, rest * sizeof(T));
  if (also_to != nullptr) std::memcpy(also_to + i, padded, rest * sizeof(T));
}

template <typename T>
void sum(void* to, void* also_to, std::span<const void* const> sources, std::size_t elements) {
  const int count = static_cast<int>(sources.size());
  T* first = static_cast<T*>(to);
  T* second = static_cast<T*>(also_to);
  if (count == 2) {
    sum<T, 2>(first, second, sources.data(), count, elements);
  } else {
    sum<T, 0>(first, second, sources.data(), count, elements);
  }
}

}  // namespace

void copy_for_others(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kBlock = 128;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  std::size_t done = 0;
  if (kStreams && reinterpret_cast<std::uintptr_t>(to) % sizeof(__m256i) == 0) {
    for (; done + kBlock <= bytes; done += kBlock) {
      const auto* in = reinterpret_cast<const __m256i*>(source + done);
      auto* out = reinterpret_cast<__m256i*>(target + done);
      const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
      const __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
      _mm256_stream_si256(out, a);
      _mm256_stream_si256(out + 1, b);
      _mm256_stream_si256(out + 2, c);
      _mm256_stream_si256(out + 3, d);
    }
  }
  if (done < bytes) std::memcpy(target + done, source + done, bytes - done);
  _mm_sfence();
}

void sum_cpu(DType type, void* to, void* also_to, std::span<const void* const> sources,
             std::size_t elements) {
  switch (type) {
    case DType::f32: sum<float>(to, also_to, sources, elements); break;
    case DType::bf16: sum<Bf16>(to, also_to, sources, elements); break;
    case DType::f16: sum<F16>(to, also_to, sources, elements); break;
    default: NVLLM_CHECK(false, "no sum of ", name_of(type));
  }
  if (also_to != nullptr) _mm_sfence();
}

}  // namespace nvllm::ipc
