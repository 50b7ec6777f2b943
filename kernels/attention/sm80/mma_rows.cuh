// 16 packed rows of a warp against tiles of keys and values in shared memory, on tensor cores
// (mma.sync, Ampere and later), with an online softmax: row maximum, sum of weights and weighted
// values cover the tokens so far.
//
// Tiles are [rows][D], where D is the head length padded with zeros to 64, 128 or 256. Chunk c of 8
// elements of row r is stored at chunk c ^ (r % 8), so that the 8 rows of an ldmatrix matrix lie in
// different banks. Tiles of E4m3 are in e4m3_rows.cuh.
#pragma once

#include <type_traits>

#include "kernels/attention/sm80/attention_params.cuh"
#include "kernels/attention/sm80/e4m3_rows.cuh"
#include "kernels/common/sm80/mma.cuh"
#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

// A range of columns of AttentionRows' heads, from which WarpRows loads its queries.
template <typename T>
struct HeadSlice {
  using Row = typename AttentionTypes<T>::Row;

  const AttentionRows<T>& rows;
  int first_column;
  struct {
    const Row* q;
    int head_dim;  // columns of the slice; may be 0 or less, or more than D
  } p;
  int packed_rows;

  __device__ __forceinline__ HeadSlice(const AttentionRows<T>& rows, int first_column)
      : rows(rows),
        first_column(first_column),
        p{rows.p.q, rows.p.head_dim - first_column},
        packed_rows(rows.packed_rows) {}
  __device__ __forceinline__ const Row* query(int packed_row) const {
    return rows.query(packed_row) + first_column;
  }
};

// The address of a chunk in a tile.
template <int D>
__device__ __forceinline__ unsigned chunk_at(unsigned tile, int row, int chunk) {
  return tile + (row * (D / 8) + (chunk ^ (row & 7))) * 16;
}

// The tile layout described above.
template <int D>
struct WholeRows {
  static __device__ __forceinline__ unsigned at(unsigned tile, int row, int chunk) {
    return chunk_at<D>(tile, row, chunk);
  }
};

// The default layout of tiles of keys and values.
template <typename T, int D>
using DefaultTile = std::conditional_t<kIsE4m3<T>, E4m3Tile<D>, WholeRows<D>>;
// The bytes of a key or value in a tile.
template <typename T, int D>
inline constexpr int kHeadBytes = D*(kIsE4m3<T> ? 1 : 2);

// A warp copies the keys and values of tokens [first, first + kTokens) into rows [row, row +
// kTokens) of two tiles, with zeros for missing tokens and, with a window, for those before
// `begin`. All lanes call it together.
template <typename T, int D, int kTokens, typename Part>
__device__ __forceinline__ void copy_tokens(const Part& part, int first, unsigned keys,
                                            unsigned values, int row, int lane, int begin = 0) {
  using Tile = DefaultTile<T, D>;
  constexpr int kChunks = kHeadBytes<T, D> / 16, kElements = D / kChunks;
  static_assert(kTokens <= 32 && kTokens * kChunks % 32 == 0);
  // Each lane finds the offset of one token. Lanes beyond the last token repeat it, so as not to
  // read past the end of the block table.
  int own = min(first + lane % kTokens, part.tokens - 1);
  if constexpr (Part::kWindowed) own = max(own, min(begin, part.tokens - 1));
  const long long mine = part.kv_offset_at(own);
#pragma unroll
  for (int i = 0; i < kTokens * kChunks / 32; ++i) {
    const int token = (i * 32 + lane) / kChunks;
    const int chunk = lane % kChunks;
    const long long offset = __shfl_sync(~0u, mine, token) + chunk * kElements;
    bool valid = first + token < part.tokens && chunk * kElements < part.p.head_dim;
    if (Part::kWindowed && first + token < begin) valid = false;
    const long long from = valid ? offset : 0;
    copy_chunk(Tile::at(keys, row + token, chunk), part.p.keys + from, valid);
    copy_chunk(Tile::at(values, row + token, chunk), part.p.values + from, valid);
  }
}

// A warp copies packed rows [first, first + 16) into the rows of a tile from `row` on, with zeros
// for missing rows.
template <int D, typename T>
__device__ __forceinline__ void copy_queries(const AttentionRows<T>& part, int first, unsigned tile,
                                             int row, int lane) {
  constexpr int kChunks = D / 8;
#pragma unroll
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int query = (i * 32 + lane) / kChunks;
    const int chunk = (i * 32 + lane) % kChunks;
    const bool valid = first + query < part.packed_rows && chunk * 8 < part.p.head_dim;
    const T* from = valid ? part.query(first + query) + chunk * 8 : part.p.q;
    copy_chunk(chunk_at<D>(tile, row + query, chunk), from, valid);
  }
}

// The state of the rows. Tile::at(tile, row, chunk) is the address of a chunk of a tile of keys or
// values. kKeepQueries: whether queries stay in registers, of which longer heads leave few; for
// E4m3 they always do.
template <typename T, int D, int kTokens, typename Tile = DefaultTile<T, D>,
          bool kKeepQueries = D <= 128 || kIsE4m3<T>>
class WarpRows {
 public:
  float out[D / 8][4] = {};                   // not yet divided by the sum
  float row_max[2] = {-INFINITY, -INFINITY};  // of rows lane / 4 and lane / 4 + 8, in base 2
  float sum[2] = {};                          // of this lane's columns until finish()

  // The warp's queries are rows [row, row + 16) of a tile in shared memory, which must not change.
  __device__ __forceinline__ WarpRows(unsigned queries, int row, int lane, float scale)
      : queries_(queries), row_(row), lane_(lane), scale_(scale * kLog2E) {}

  // The first of the two columns of out[n][..] that this lane has, once finish() has been called.
  __device__ __forceinline__ int column(int n) const {
    return kIsE4m3<T> ? e4m3_column(n, lane_) : n * 8 + 2 * (lane_ % 4);
  }

  // To be called once the queries are in shared memory.
  __device__ __forceinline__ void start() {
    if constexpr (kKeepQueries) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) kept_[step] = load_queries(step);
    }
  }

  // Alternative without shared memory: loads the packed rows [first, first + 16) from global
  // memory, with zeros for missing rows.
  __device__ __forceinline__ void start(const AttentionRows<T>& part, int first) {
    start_from(part, first);
  }
  __device__ __forceinline__ void start(const HeadSlice<T>& part, int first) {
    start_from(part, first);
  }

  // Adds the tile that begins with token `first`. visible[i]: the end of the tokens that the lane's
  // row i attends to; with kWindow, first_seen[i] is the first one. If all 16 rows attend to the
  // whole tile, `masked` may be false.
  template <bool kWindow>
  __device__ __forceinline__ void add(unsigned keys, unsigned values, int first, bool masked,
                                      const int (&visible)[2], const int (&first_seen)[2]) {
    float score[kTokens / 8][4] = {};
    add_scores(keys, score);
    add_scored<kWindow>(values, first, masked, visible, first_seen, score);
  }

  // The two halves of add(). Between them, the scores of other slices of the head may be added to
  // these, which start at zero.
  __device__ __forceinline__ void add_scores(unsigned keys, float (&score)[kTokens / 8][4]) {
    if constexpr (kIsE4m3<T>) {
      multiply_e4m3_keys<Tile, D, kTokens>(keys, lane_, kept_, score);
    } else {
      multiply_keys(keys, score);
    }
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] *= kIsE4m3<T> ? scale_ * e4m3_scales_.row[i / 2] : scale_;
      }
    }
  }
  template <bool kWindow>
  __device__ __forceinline__ void add_scored(unsigned values, int first, bool masked,
                                             const int (&visible)[2], const int (&first_seen)[2],
                                             float (&score)[kTokens / 8][4]) {
    if (masked) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = first + n * 8 + 2 * (lane_ % 4) + i % 2;
          const bool before = kWindow && token < first_seen[i / 2];
          if (before || token >= visible[i / 2]) score[n][i] = -INFINITY;
        }
      }
    }
    exponentiate(score);
    if constexpr (kIsE4m3<T>) {
      add_e4m3_values<Tile, D, kTokens>(values, lane_, score, out);
    } else {
      add_values(values, score);
    }
  }

  // Adds the sums of the lanes that share a row. value_scale: E4m3 factor of the weighted values.
  __device__ __forceinline__ void finish(float value_scale) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
    if constexpr (kIsE4m3<T>) finish_e4m3_values<D>(value_scale, out);
  }

 private:
  template <typename Part>
  __device__ __forceinline__ void start_from(const Part& part, int first) {
    static_assert(kKeepQueries);
    if constexpr (kIsE4m3<T>) {
      e4m3_scales_ = load_queries_for_e4m3(part, first, lane_, kept_);
    } else {
      load_kept(part, first);
    }
  }

  // Loads whole heads of D columns, or a slice, which may have fewer.
  template <typename Part>
  __device__ __forceinline__ void load_kept(const Part& part, int first) {
    constexpr bool kSlice = std::is_same_v<Part, HeadSlice<T>>;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + lane_ / 4 + 8 * i;
      const bool valid = row < part.packed_rows;
      const T* from = valid ? part.query(row) + 2 * (lane_ % 4) : part.p.q;
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool there = valid && (!kSlice || step * 16 + half * 8 < part.p.head_dim);
          kept_[step].word[i + 2 * half] =
              there ? *reinterpret_cast<const unsigned*>(from + step * 16 + half * 8) : 0;
        }
      }
    }
  }

  __device__ __forceinline__ Quad load_queries(int step) const {
    return load_matrices<false>(chunk_at<D>(queries_, row_ + lane_ % 16, step * 2 + lane_ / 16));
  }

  __device__ __forceinline__ void multiply_keys(unsigned keys, float (&score)[kTokens / 8][4]) {
    const int token = lane_ / 16 * 8 + lane_ % 8;
    // With few tokens, even and odd steps have separate accumulators, which shortens the chains of
    // dependent mma instructions.
    constexpr bool kTwoSums = kTokens <= 16;
    float other[kTwoSums ? kTokens / 8 : 1][4] = {};
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      const Quad q = kKeepQueries ? kept_[step] : load_queries(step);
#pragma unroll
      for (int n = 0; n < kTokens / 8; n += 2) {
        const Quad k =
            load_matrices<false>(Tile::at(keys, n * 8 + token, step * 2 + lane_ / 8 % 2));
        const bool odd = kTwoSums && step % 2 == 1;
        multiply_add<T>(odd ? other[n] : score[n], q, k.word[0], k.word[1]);
        multiply_add<T>(odd ? other[n + 1] : score[n + 1], q, k.word[2], k.word[3]);
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

  // Turns scores into weights; rescales the accumulated results to the new row maximum.
  __device__ __forceinline__ void exponentiate(float (&score)[kTokens / 8][4]) {
    float rescale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float new_max = row_max[i];
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        new_max = fmaxf(new_max, fmaxf(score[n][2 * i], score[n][2 * i + 1]));
      }
      new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
      new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
      const float reference = reference_of(new_max);
      rescale[i] = power_of_2(row_max[i] - reference);
      row_max[i] = new_max;
      sum[i] *= rescale[i];
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int c = 2 * i; c < 2 * i + 2; ++c) {
          score[n][c] = power_of_2(score[n][c] - reference);
          sum[i] += score[n][c];
        }
      }
    }
    // In most tiles the maximum does not change.
    if (__all_sync(~0u, rescale[0] == 1 && rescale[1] == 1)) return;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
    }
  }

  __device__ __forceinline__ void add_values(unsigned values,
                                             const float (&weight)[kTokens / 8][4]) {
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const auto& left = weight[2 * step];
      const auto& right = weight[2 * step + 1];
      const Quad weights = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                            pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        const Quad v =
            load_matrices<true>(Tile::at(values, step * 16 + lane_ % 16, n + lane_ / 16));
        multiply_add<T>(out[n], weights, v.word[0], v.word[1]);
        multiply_add<T>(out[n + 1], weights, v.word[2], v.word[3]);
      }
    }
  }

  unsigned queries_;
  int row_, lane_;
  float scale_;
  Quad kept_[kKeepQueries ? D / 16 : 1];
  E4m3QueryScales e4m3_scales_;
};

}  // namespace nvllm::kernels::cuda
