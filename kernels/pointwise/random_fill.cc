#include "kernels/pointwise/random_fill.h"

#include <cmath>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/common/host_device.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {

namespace {

void check_place(const RandomFill& args) {
  if (args.first_row < 0)
    fail("random_fill: first_row is ", args.first_row, "; it must be at least 0");
  if (args.first_column < 0 || args.first_column + args.out.shape[1] > args.whole_columns) {
    fail("random_fill: columns ", args.first_column, " to ", args.first_column + args.out.shape[1],
         " are not all among the whole tensor's ", args.whole_columns, " columns");
  }
}

}  // namespace

void check_random_fill(const RandomFill& args) {
  constexpr Arguments check("random_fill");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  check.require_dense(args.out, "out");
  check_place(args);
}

void check_random_bytes(const RandomFill& args) {
  constexpr Arguments check("random_bytes");
  check.require_dense(args.out, "out", DType::i32, {args.out.shape[0], args.out.shape[1]});
  check_place(args);
}

void random_fill(const RandomFill& args, Stream& stream) {
  check_random_fill(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, random_fill(args, stream));
}

void random_bytes(const RandomFill& args, Stream& stream) {
  check_random_bytes(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, random_bytes(args, stream));
}

// Random values on the CPU, eight at a time.
namespace cpu {
namespace {

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
      const __m256i bits = random_bits8(keys, _mm256_add_epi32(_mm256_set1_epi32(at), lanes));
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
    const auto first = args.first_row * args.whole_columns + args.first_column;
    const Job<T> job{.out = args.out.as<T>(),
                     .columns = args.out.shape[1],
                     .whole_columns = args.whole_columns,
                     .seed = args.seed,
                     .first = static_cast<std::uint64_t>(first),
                     .center = args.center,
                     .width = args.width};
    // Making a value costs about as much as moving four.
    submit_rows(stream, args.out.shape[0], 4 * job.columns * sizeof(T), job);
  });
}

void random_bytes(const RandomFill& args, Stream& stream) {
  const auto fill_rows = [args](std::int64_t begin, std::int64_t end) {
    const std::int64_t columns = args.out.shape[1];
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto index = static_cast<std::uint64_t>((args.first_row + row) * args.whole_columns +
                                                      args.first_column + i);
        const RandomKeys keys(args.seed, index >> 32);
        const std::uint32_t bits = keys.bits(static_cast<std::uint32_t>(index)) & kRandomBytes;
        args.out.as<std::int32_t>()[row * columns + i] = static_cast<std::int32_t>(bits);
      }
    }
  };
  submit_rows(stream, args.out.shape[0], 16 * args.out.shape[1] * 4, fill_rows);
}

}  // namespace cpu
}  // namespace nvllm::kernels
