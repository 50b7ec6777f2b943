// What becomes of a tile's strided scores, which consumers on Hopper have in registers (select_tiles_sm90.cu): a
// log-sum-exp for each strided row and tile of kTile strided tokens.
#pragma once

#include "kernels/sparse/sm90/strided_tiles.cuh"

namespace nvllm::kernels::cuda::strided {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

inline constexpr int kScores = kTokens / 2;  // of a thread, of two rows: wgmma.cuh says which
inline constexpr int kSums =
    kTokens / kTile / 4;  // of a thread for each row, of tiles that follow each other
static_assert(kSums % 4 == 0 && kTile % 8 == 0);

// Four values, each to be added up over the four lanes of a row: lane l gets the sum of value l.
__device__ __forceinline__ float add_quads(const float (&value)[4], int lane) {
  const bool high = lane & 2, odd = lane & 1;
  const float first =
      (high ? value[2] : value[0]) + __shfl_xor_sync(~0u, high ? value[0] : value[2], 2);
  const float second =
      (high ? value[3] : value[1]) + __shfl_xor_sync(~0u, high ? value[1] : value[3], 2);
  return (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
}

// Of one of the thread's two rows, which sees so many of the tokens. One reference does for all 256: a tile whose
// weights are zero beside it has none beside all of the row either.
template <int kRow>
__device__ __forceinline__ void sum_tiles(const float (&scores)[kScores], float scale, int seen,
                                          int lane, float (&sums)[kSums]) {
  const auto at = [&](int j, int i) {
    return j * 8 + lane % 4 * 2 + i < seen ? scores[4 * j + 2 * kRow + i] : -INFINITY;
  };
  float highest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) highest = fmaxf(highest, fmaxf(at(j, 0), at(j, 1)));
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
  highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
  const float reference = reference_of(highest) * scale;
  const auto weight = [&](int j) {
    return power_of_2(at(j, 0) * scale - reference) + power_of_2(at(j, 1) * scale - reference);
  };
#pragma unroll
  for (int m = 0; m < kSums; ++m) {
    float sum[4];  // of tile m of each lane
#pragma unroll
    for (int owner = 0; owner < 4; ++owner) {
      const int first = (owner * kSums + m) * (kTile / 8);
      sum[owner] = weight(first);
#pragma unroll
      for (int j = 1; j < kTile / 8; ++j) sum[owner] += weight(first + j);
    }
    sums[m] = reference + __log2f(add_quads(sum, lane));
  }
}

// row: the thread's first one, kRow: 0, or 1 for the one eight rows further.
template <typename T, int kRow>
__device__ __forceinline__ void store_sums(const TileParams<T>& p, const Place& place, int row,
                                           const float (&scores)[kScores], bool masked, int lane) {
  const int i = row + 8 * kRow;
  float sums[kSums];
  if (masked) {
    const int seen = i < p.strides() ? p.seen(i) - place.token : 0;
    sum_tiles<kRow>(scores, p.scale, seen, lane, sums);
  } else {
    sum_tiles<kRow>(scores, p.scale, kTokens, lane, sums);
  }
  const int tile = place.token / kTile + lane % 4 * kSums;
  if (i >= p.strides() || tile >= p.token_tiles) return;
  float* const to = p.sums_of(place.head, i) + tile;
  if (p.token_tiles % 4 == 0) {
#pragma unroll
    for (int m = 0; m < kSums; m += 4) {
      if (tile + m >= p.token_tiles) return;
      *reinterpret_cast<float4*>(to + m) =
          make_float4(sums[m], sums[m + 1], sums[m + 2], sums[m + 3]);
    }
    return;
  }
#pragma unroll
  for (int m = 0; m < kSums; ++m) {
    if (tile + m < p.token_tiles) to[m] = sums[m];
  }
}

#endif

}  // namespace nvllm::kernels::cuda::strided
