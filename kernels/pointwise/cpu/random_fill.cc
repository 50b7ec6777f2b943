// Random values on the CPU, eight at a time.
#include "kernels/pointwise/random_fill.h"

#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/common/random_bits.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels::cpu {
namespace {

__m256i mix8(__m256i low, const RandomKeys& keys) {
  __m256i x = _mm256_xor_si256(low, _mm256_set1_epi32(static_cast<int>(keys.first)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(RandomKeys::kFactor1)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
  x = _mm256_xor_si256(x, _mm256_set1_epi32(static_cast<int>(keys.second)));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(RandomKeys::kFactor2)));
  return _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
}

template <typename T>
struct Job {
  T* out;
  std::int64_t columns, whole_columns;
  std::uint64_t seed, first;
  float center, width;

  // Elements of one block of 2^32 indices.
  void fill(T* to, std::uint64_t index, std::int64_t count) const {
    const RandomKeys keys(seed, index >> 32);
    const auto low = static_cast<std::uint32_t>(index);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 scale = _mm256_set1_ps(RandomKeys::kUnit), wide = _mm256_set1_ps(width);
    const __m256 middle = _mm256_set1_ps(center);
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const auto at = static_cast<int>(low + static_cast<std::uint32_t>(i));
      const __m256i bits = mix8(_mm256_add_epi32(_mm256_set1_epi32(at), lanes), keys);
      const __m256 unit = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 8)), scale);
      store8(to + i, _mm256_fmadd_ps(wide, unit, middle));
    }
    for (; i < count; ++i) {
      const float unit = keys.unit(low + static_cast<std::uint32_t>(i));
      to[i] = from_float<T>(__builtin_fmaf(width, unit, center));
    }
  }

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      std::uint64_t index = first + static_cast<std::uint64_t>(row * whole_columns);
      T* to = out + row * columns;
      for (std::int64_t left = columns; left > 0;) {
        const auto to_next_block = static_cast<std::int64_t>((1ull << 32) - (index & 0xffffffffu));
        const std::int64_t count = std::min(left, to_next_block);
        fill(to, index, count);
        index += count, to += count, left -= count;
      }
    }
  }
};

}  // namespace

void random_fill(const RandomFill& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    Job<T> job;
    job.out = args.out.as<T>();
    job.columns = args.out.shape[1];
    job.whole_columns = args.whole_columns;
    job.seed = args.seed;
    job.first = static_cast<std::uint64_t>(args.first_row * args.whole_columns + args.first_column);
    job.center = args.center;
    job.width = args.width;
    // Making a value costs about as much as moving four.
    submit_rows(stream, args.out.shape[0], 4 * job.columns * sizeof(T), job);
  });
}

}  // namespace nvllm::kernels::cpu
