// Operations of WarpRows (mma_rows.cuh) on E4m3 tiles of keys and values. E4m3 values are loaded
// from shared memory and converted to float16 in registers, which is exact; queries and weights
// become float16, too. The scales of keys and values are applied to scores and results.
//
// A tile is [rows][D bytes], in chunks of 16 numbers. An ldmatrix matrix is a chunk of 8 rows; each
// of its 16-bit elements holds two numbers of a row. So a lane's word contains:
//   keys: 4 adjacent numbers of one token. As mma operands they are columns 2 c, 2 c + 1,
//         2 c + 8 and 2 c + 9 of a step of 16 numbers, c = lane % 4; queries use the same order.
//   values (transposed): 2 adjacent numbers of each of two adjacent tokens. Even numbers are
//         operands of one mma, odd ones of another: accumulators 2 j and 2 j + 1 are the even and
//         odd numbers of chunk j. finish_e4m3_values() interleaves them again.
#pragma once

#include <type_traits>

#include "kernels/attention/sm80/attention_params.cuh"
#include "kernels/common/sm80/e4m3.cuh"
#include "kernels/common/sm80/mma.cuh"

namespace nvllm::kernels::cuda {

// Chunks are swizzled like a bulk copy with a swizzle of the row size, 64 or 128 bytes, so that the
// rows of a matrix lie in different banks.
template <int D>
struct E4m3Tile {
  static __device__ __forceinline__ unsigned at(unsigned tile, int row, int chunk) {
    const int exchanged = chunk ^ (D == 64 ? row / 2 & 3 : row & 7);
    return tile + row * D + exchanged * 16;
  }
};

// The first of the two columns of accumulator n that a lane has, after finish_e4m3_values().
__device__ __forceinline__ int e4m3_column(int n, int lane) {
  return n / 2 * 16 + 4 * (lane % 4) + n % 2 * 2;
}

// Factors of the scores of rows lane / 4 and lane / 4 + 8 that undo the scaling of the queries.
struct E4m3QueryScales {
  float row[2];
};

// The larger magnitude of a pair, and the pair times a factor, as float16.
template <typename Row>
__device__ __forceinline__ float largest_of(unsigned pair) {
  return fmaxf(fabsf(widen(Row{static_cast<unsigned short>(pair)})),
               fabsf(widen(Row{static_cast<unsigned short>(pair >> 16)})));
}
template <typename Row>
__device__ __forceinline__ unsigned halves_of(unsigned pair, float factor) {
  return pack<F16>(widen(Row{static_cast<unsigned short>(pair)}) * factor,
                   widen(Row{static_cast<unsigned short>(pair >> 16)}) * factor);
}

// Loads the packed rows [first, first + 16) from global memory, scaled (QueryScale), with zeros for
// missing rows. part: AttentionRows or a HeadSlice of them.
template <typename Part, int kSteps>
__device__ __forceinline__ E4m3QueryScales load_queries_for_e4m3(const Part& part, int first,
                                                                 int lane,
                                                                 Quad (&queries)[kSteps]) {
  using Row = std::remove_cvref_t<decltype(*part.query(0))>;
  E4m3QueryScales scales;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + lane / 4 + 8 * i;
    const bool valid = row < part.packed_rows;
    const Row* from = valid ? part.query(row) + 4 * (lane % 4) : part.p.q;
    float largest = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool there = valid && step * 16 < part.p.head_dim;
      const uint2 four =
          there ? *reinterpret_cast<const uint2*>(from + step * 16) : make_uint2(0, 0);
      queries[step].word[i] = four.x, queries[step].word[i + 2] = four.y;
      largest = fmaxf(largest, fmaxf(largest_of<Row>(four.x), largest_of<Row>(four.y)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const QueryScale scale(largest);
    scales.row[i] = scale.inverse;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      queries[step].word[i] = halves_of<Row>(queries[step].word[i], scale.factor);
      queries[step].word[i + 2] = halves_of<Row>(queries[step].word[i + 2], scale.factor);
    }
  }
  return scales;
}

// score += queries keys. With few tokens, even and odd steps have separate accumulators, which
// shortens the chains of dependent mma instructions.
template <typename Tile, int D, int kTokens>
__device__ __forceinline__ void multiply_e4m3_keys(unsigned keys, int lane,
                                                   const Quad (&queries)[D / 16],
                                                   float (&score)[kTokens / 8][4]) {
  const int token = lane / 16 * 8 + lane % 8;
  constexpr bool kTwoSums = kTokens <= 16;
  float other[kTwoSums ? kTokens / 8 : 1][4] = {};
#pragma unroll
  for (int step = 0; step < D / 16; step += 2) {
#pragma unroll
    for (int n = 0; n < kTokens / 8; n += 2) {
      const Quad k = load_matrices<false>(Tile::at(keys, n * 8 + token, step + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // tokens n or n + 1, step or step + 1
        unsigned low, high;
        widen_e4m3_to_half(k.word[i], low, high);
        auto& sum = kTwoSums && i % 2 == 1 ? other[n + i / 2] : score[n + i / 2];
        multiply_add<F16>(sum, queries[step + i % 2], low, high);
      }
    }
  }
  if constexpr (kTwoSums) {
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) score[n][i] += other[n][i];
    }
  }
}

// out += weights values.
template <typename Tile, int D, int kTokens>
__device__ __forceinline__ void add_e4m3_values(unsigned values, int lane,
                                                const float (&weight)[kTokens / 8][4],
                                                float (&out)[D / 8][4]) {
#pragma unroll
  for (int step = 0; step < kTokens / 16; ++step) {
    const auto& left = weight[2 * step];
    const auto& right = weight[2 * step + 1];
    const Quad weights = {pack<F16>(left[0], left[1]), pack<F16>(left[2], left[3]),
                          pack<F16>(right[0], right[1]), pack<F16>(right[2], right[3])};
#pragma unroll
    for (int chunk = 0; chunk < D / 16; chunk += 2) {
      const Quad v =
          load_matrices<true>(Tile::at(values, step * 16 + lane % 16, chunk + lane / 16));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // both tokens' first number, then both tokens' second one
        constexpr unsigned kByNumber = 0x3120;
        unsigned even[2], odd[2];  // of the first 8 tokens, and of the others
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          widen_e4m3_to_half(__byte_perm(v.word[2 * i + half], 0, kByNumber), even[half],
                             odd[half]);
        }
        multiply_add<F16>(out[2 * (chunk + i)], weights, even[0], even[1]);
        multiply_add<F16>(out[2 * (chunk + i) + 1], weights, odd[0], odd[1]);
      }
    }
  }
}

// Applies the scale of the values, and makes each accumulator's two columns adjacent.
template <int D>
__device__ __forceinline__ void finish_e4m3_values(float scale, float (&out)[D / 8][4]) {
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float second = out[n][2 * i + 1] * scale;
      out[n][2 * i] *= scale;
      out[n][2 * i + 1] = out[n + 1][2 * i] * scale;
      out[n + 1][2 * i] = second;
      out[n + 1][2 * i + 1] *= scale;
    }
  }
}

}  // namespace nvllm::kernels::cuda
