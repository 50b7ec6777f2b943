// 16 packed rows of a warp against tiles of keys and values in shared memory, on tensor cores
// (mma.sync, Ampere and later), with an online softmax: the row maximum, the sum of weights and the
// weighted values cover the tokens so far.
//
// Tiles are [rows][D], where D is the head's length padded with zeros to 64, 128 or 256. Chunk c of
// 8 elements of row r lies at chunk c ^ (r % 8), so that the 8 rows of a matrix that ldmatrix reads
// lie in different banks.
//
// Fragment layout of a 16 x 8 accumulator of mma: lane l has the columns 2 (l % 4) and the next;
// elements [0] and [1] are of row l / 4, [2] and [3] of row l / 4 + 8.
#pragma once

#include "kernels/attention/sm80/attention_params.cuh"
#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

struct Quad {
  unsigned word[4];
};

// Loads four 8 x 8 matrices; lanes 8 i to 8 i + 7 give the addresses of matrix i's rows.
template <bool kTransposed>
__device__ __forceinline__ Quad load_matrices(unsigned address) {
  Quad q;
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.word[0]), "=r"(q.word[1]), "=r"(q.word[2]), "=r"(q.word[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.word[0]), "=r"(q.word[1]), "=r"(q.word[2]), "=r"(q.word[3])
                 : "r"(address)
                 : "memory");
  }
  return q;
}

// sum += a b, 16 x 16 times 16 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const Quad& a, unsigned b0,
                                             unsigned b1) {
  if constexpr (dtype_of<T> == DType::bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  }
}

template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return narrow<T>(low).bits | static_cast<unsigned>(narrow<T>(high).bits) << 16;
}

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

// A warp copies the keys and values of tokens [first, first + kTokens) into rows [row, row +
// kTokens) of two tiles, with zeros for tokens that the sequence does not have. All lanes call it
// together.
template <int D, int kTokens, typename Part>
__device__ __forceinline__ void copy_tokens(const Part& part, int first, unsigned keys,
                                            unsigned values, int row, int lane) {
  constexpr int kChunks = D / 8;
  static_assert(kTokens <= 32 && kTokens * kChunks % 32 == 0);
  // Each lane finds the offset of one token. Lanes beyond the last token repeat it: they must not
  // read the block table beyond its end.
  const long long mine = part.kv_offset_at(min(first + lane % kTokens, part.tokens - 1));
#pragma unroll
  for (int i = 0; i < kTokens * kChunks / 32; ++i) {
    const int token = (i * 32 + lane) / kChunks;
    const int chunk = lane % kChunks;
    const long long offset = __shfl_sync(~0u, mine, token) + chunk * 8;
    const bool valid = first + token < part.tokens && chunk * 8 < part.p.head_dim;
    const long long from = valid ? offset : 0;
    copy_chunk(chunk_at<D>(keys, row + token, chunk), part.p.keys + from, valid);
    copy_chunk(chunk_at<D>(values, row + token, chunk), part.p.values + from, valid);
  }
}

// A warp copies packed rows [first, first + 16) into the rows of a tile from `row` on, with zeros
// for those that do not exist.
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
// values.
template <typename T, int D, int kTokens, typename Tile = WholeRows<D>>
class WarpRows {
 public:
  float out[D / 8][4] = {};                   // not yet divided by the sum
  float row_max[2] = {-INFINITY, -INFINITY};  // of rows lane / 4 and lane / 4 + 8, in base 2
  float sum[2] = {};                          // of this lane's columns until finish()

  // The warp's queries are rows [row, row + 16) of a tile in shared memory, which must not change.
  __device__ __forceinline__ WarpRows(unsigned queries, int row, int lane, float scale)
      : queries_(queries), row_(row), lane_(lane), scale_(scale * kLog2E) {}

  // To be called once the queries are in shared memory.
  __device__ __forceinline__ void start() {
    if constexpr (kKeepQueries) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) kept_[step] = load_queries(step);
    }
  }

  // Alternative without shared memory: loads the packed rows [first, first + 16) from global
  // memory, with zeros for those that do not exist.
  __device__ __forceinline__ void start(const AttentionRows<T>& part, int first) {
    static_assert(kKeepQueries);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + lane_ / 4 + 8 * i;
      const bool valid = row < part.packed_rows;
      const T* from = valid ? part.query(row) + 2 * (lane_ % 4) : part.p.q;
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          kept_[step].word[i + 2 * half] =
              valid ? *reinterpret_cast<const unsigned*>(from + step * 16 + half * 8) : 0;
        }
      }
    }
  }

  // Adds a tile whose first token has this number. visible[i]: how many tokens the lane's rows see.
  // If all 16 rows see the whole tile, `masked` may be false.
  __device__ __forceinline__ void add(unsigned keys, unsigned values, int first, bool masked,
                                      const int (&visible)[2]) {
    float score[kTokens / 8][4] = {};
    multiply_keys(keys, score);
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) score[n][i] *= scale_;
    }
    if (masked) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = first + n * 8 + 2 * (lane_ % 4) + i % 2;
          if (token >= visible[i / 2]) score[n][i] = -INFINITY;
        }
      }
    }
    exponentiate(score);
    add_values(values, score);
  }

  // Adds the sums of the lanes that share a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
  }

 private:
  // Longer heads leave no registers for the queries.
  static constexpr bool kKeepQueries = D <= 128;

  __device__ __forceinline__ Quad load_queries(int step) const {
    return load_matrices<false>(chunk_at<D>(queries_, row_ + lane_ % 16, step * 2 + lane_ / 16));
  }

  __device__ __forceinline__ void multiply_keys(unsigned keys, float (&score)[kTokens / 8][4]) {
    const int token = lane_ / 16 * 8 + lane_ % 8;
    // With few tokens, even and odd steps have sums of their own, which shortens the chains of
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

  // Turns scores into weights; what has been added so far is rescaled to the new row maximum.
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
};

}  // namespace nvllm::kernels::cuda
