// The rows of x of a GEMV with a quantized weight, in shared memory: as fragments of operand B.
#pragma once

#include "kernels/common/sm80/e4m3.cuh"
#include "kernels/common/sm80/mma.cuh"
#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm80/quantized_values.cuh"

namespace nvllm::kernels::cuda {

__device__ __forceinline__ unsigned address_of(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Operand B of a slice, for 8 or 16 rows of x.
template <WeightFormat kFormat, typename T, int kHalves>
struct RowsFragments {
  static constexpr int kSteps = kBlockInputs<kFormat> / 16;
  unsigned b[kHalves][kSteps][2];

  // `slice`: the address of the first row's slice. Missing rows repeat the last one; their sums are
  // not used.
  __device__ __forceinline__ void load(unsigned slice, int row_bytes, int rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const unsigned row = slice + min(half * 8 + lane % 8, rows - 1) * row_bytes + lane / 8 * 16;
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        const Quad tiles = load_matrices<false>(row + step * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) b[half][step + i / 2][i % 2] = tiles.word[i];
      }
    }
  }
  // Rearranges words into the form that weights of this format require.
  __device__ __forceinline__ void arrange() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) arrange_step<kFormat, T>(b[half][step]);
    }
  }
};

// Bytes of a row of x of a slice in a ring: 8 rows lie in different banks.
template <int kInputs>
inline constexpr int kSliceRowBytes = kInputs * 2 + 16;

// A warp's slices of x, which it copies into its ring.
template <typename T, int kInputs>
struct RingRows {
  static constexpr int kChunks = kInputs / 8, kRowsAtOnce = 32 / kChunks;

  const T* x;  // this lane's first 16 bytes
  long long stride;
  int rows, inputs, row, chunk;

  __device__ __forceinline__ explicit RingRows(const GemmParams<T>& p)
      : stride(p.x_stride * kRowsAtOnce),
        rows(p.rows),
        inputs(p.inputs),
        row(threadIdx.x % 32 / kChunks),
        chunk(threadIdx.x % kChunks) {
    x = p.x + row * p.x_stride + chunk * 8;
  }

  __device__ __forceinline__ void copy(int slice, unsigned stage) const {
    const bool exists = slice * kInputs + chunk * 8 < inputs;
    const T* from = exists ? x + slice * kInputs : x;
    unsigned to = stage + row * kSliceRowBytes<kInputs> + chunk * 16;
#pragma unroll 1
    for (int r = row; r < rows; r += kRowsAtOnce) {
      copy_chunk(to, from, exists);
      from += stride, to += kRowsAtOnce * kSliceRowBytes<kInputs>;
    }
  }
};

// --- all of x ------------------------------------------------------------------------------------

// Each row and slice may have a factor, a float that makes the slice cheaper to multiply:
//
//   for integers, whose offsets are multiplied by it: the sum of the slice of x;
//   for fp8, which the GPU converts only to float16: the power of two by which the slice of x has
//   been divided, so that its largest magnitude is a float16 below 2^15. What becomes subnormal
//   then is negligible.
//
// A slice's inputs then have one scale.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kConvertsE4m3 = true;
#else
inline constexpr bool kConvertsE4m3 = false;
#endif
template <typename T, WeightFormat kFormat, int kUnit>
inline constexpr bool kHasFactors = kIsBf16<T>&& kUnit == kBlockInputs<kFormat> &&
                                    (!has_float_values(kFormat) ||
                                     (kFormat == WeightFormat::fp8 && kConvertsE4m3));

// The number of rows for which a slice has factors.
__host__ __device__ constexpr int factor_rows(int rows) {
  return rows <= 8 ? 8 : 16;
}

// Bytes of a row: 8 rows lie in different banks.
__host__ __device__ constexpr int staged_row_bytes(int inputs) {
  return (inputs * 2 + 127) / 128 * 128 + 16;
}

// factors: includes those of slices of at least 64 inputs.
__host__ __device__ constexpr int staged_bytes(int rows, int inputs, bool normed, bool factors) {
  const int norm = rows * norm_slots(inputs) * 4 + inputs * 2;
  return rows * staged_row_bytes(inputs) + (normed ? norm : 0) +
         (factors ? (inputs + 63) / 64 * factor_rows(rows) * 4 : 0);
}

// A pair of bfloat16 times a power of two as float16.
__device__ __forceinline__ unsigned scaled_halves(unsigned pair, float factor) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000);
  const __half2 halves = __floats2half2_rn(low * factor, high * factor);
  return *reinterpret_cast<const unsigned*>(&halves);
}

// The factor of a slice; each of its lanes calls this with 16 inputs. For fp8 weights these become
// float16.
template <WeightFormat kFormat, typename T>
__device__ __forceinline__ float take_factor(Vector<T> (&x)[2]) {
  constexpr int kLanes = kBlockInputs<kFormat> / 16;
  const unsigned lanes = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
  if constexpr (kFormat == WeightFormat::fp8) {
    unsigned both = 0;  // largest magnitudes of first and second elements of words
#pragma unroll
    for (int i = 0; i < 8; ++i) both = __vmaxu2(both, x[i / 4].word[i % 4] & 0x7fff7fff);
    unsigned largest = max(both & 0xffff, both >> 16);
#pragma unroll
    for (int lane = 1; lane < kLanes; lane *= 2)
      largest = max(largest, __shfl_xor_sync(lanes, largest, lane));
    // The exponent of a float for which the factor and its inverse are normal, too.
    const unsigned exponent = max(largest >> 7, 30u);
    const bool finite = exponent < 255;
    const float factor = finite ? __uint_as_float((127 + 14 + 127 - exponent) << 23) : 1.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      unsigned& word = x[i / 4].word[i % 4];
      word = scaled_halves(word, factor);
    }
    return finite ? __uint_as_float((exponent - 14) << 23) : 1.0f;
  } else {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const Floats<T> floats = widen(x[v]);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += floats.element[i];
    }
#pragma unroll
    for (int lane = 1; lane < kLanes; lane *= 2) sum += __shfl_xor_sync(lanes, sum, lane);
    return sum;
  }
}

// x's rows, with kNorm their norms, by all threads of the block; bits as in
// kernels/pointwise/sm80/rmsnorm.cuh. Shared memory holds the rows, the norm's weights, the sums,
// then factors of slices, if kFactors. p.inputs are a multiple of 64.
template <typename T, WeightFormat kFormat, bool kNorm, bool kFactors, int kMaxRows>
struct StagedRows {
  unsigned base;
  char* rows;
  Vector<T>* weight;
  float* sums;
  float* factors;  // [slices, kMaxRows]
  int row_bytes, slots, vectors;

  __device__ __forceinline__ StagedRows(char* shared, const GemmParams<T>& p)
      : base(address_of(shared)),
        rows(shared),
        weight(reinterpret_cast<Vector<T>*>(shared + p.rows * staged_row_bytes(p.inputs))),
        sums(reinterpret_cast<float*>(weight + p.inputs / 8)),
        factors(kNorm ? sums + p.rows * norm_slots(p.inputs) : reinterpret_cast<float*>(weight)),
        row_bytes(staged_row_bytes(p.inputs)),
        slots(norm_slots(p.inputs)),
        vectors(p.inputs / 8) {}

  // The address of the first row's slice.
  __device__ __forceinline__ unsigned slice(int slice) const {
    return base + slice * (kBlockInputs<kFormat> * 2);
  }
  // A slice's factors of rows 8 half + 2 t and the next one, for lanes 4 g + t.
  __device__ __forceinline__ float2 factors_of(int slice, int half) const {
    const float* const from = factors + slice * kMaxRows + half * 8 + threadIdx.x % 4 * 2;
    return *reinterpret_cast<const float2*>(from);
  }

  // Constants are loaded before the previous kernel has ended.
  __device__ __forceinline__ void begin(const GemmParams<T>& p) const {
    if constexpr (kNorm) {
      for (int v = threadIdx.x; v < vectors; v += blockDim.x)
        copy_async(weight + v, p.norm_weight + v * 8);
    }
  }

  __device__ __forceinline__ void finish(const GemmParams<T>& p) const {
    if constexpr (kNorm) {
      take_sums(p);
      wait_for_async_copies();
      __syncthreads();
    }
    const int pairs = vectors / 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < p.rows * pairs; i += blockDim.x) {
      const int row = i / pairs, v = i % pairs * 2;
      Vector<T> x[2];
      if constexpr (kNorm) {
        const float squares = rms_norm_add_chunks(sums + row * slots, slots);
        const float scale = rms_norm_scale(squares, p.inverse_inputs, p.epsilon);
        x[0] = rms_norm_apply(row_at(row)[v], scale, weight[v]);
        x[1] = rms_norm_apply(row_at(row)[v + 1], scale, weight[v + 1]);
      } else {
        const T* const from = p.x + row * p.x_stride + v * 8;
        x[0] = load_vector(from), x[1] = load_vector(from + 8);
      }
      if constexpr (kFactors) {
        constexpr int kLanes = kBlockInputs<kFormat> / 16;
        const float factor = take_factor<kFormat>(x);
        if (i % kLanes == 0) factors[v / 2 / kLanes * kMaxRows + row] = factor;
      }
      if constexpr (!kFactors || kFormat != WeightFormat::fp8) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          unsigned step[2] = {x[0].word[word], x[1].word[word]};
          arrange_step<kFormat, T>(step);
          x[0].word[word] = step[0], x[1].word[word] = step[1];
        }
      }
      row_at(row)[v] = x[0], row_at(row)[v + 1] = x[1];
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ Vector<T>* row_at(int row) const {
    return reinterpret_cast<Vector<T>*>(rows + row * row_bytes);
  }

  // Stores the rows unchanged, and the sums of their squares over 32 vectors each.
  __device__ __forceinline__ void take_sums(const GemmParams<T>& p) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int chunk = threadIdx.x / 32; chunk < p.rows * slots; chunk += blockDim.x / 32) {
      const int row = chunk / slots, vector = chunk % slots * 32 + lane;
      Vector<T> x{};
      if (vector < vectors) {
        x = load_vector(p.x + row * p.x_stride + vector * 8);
        row_at(row)[vector] = x;
      }
      const float sum = rms_norm_chunk(x);
      if (lane == 0) sums[chunk] = sum;
    }
  }
};

}  // namespace nvllm::kernels::cuda
