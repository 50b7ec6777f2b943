// The gated delta rule in chunks of 64 tokens, as small GEMMs on tensor cores.
//
// In a chunk, let S be its initial state, g[t] the cumulative decay up to token t, and q, k normed
// as in linear_attention.h (rows of Q, K). The d of all tokens (rows of D) solve
//   (I + L) D = diag(beta) (V - diag(g) K S),  L[t][s] = beta[t] g[t]/g[s] (k[t] k[s]), s < t.
// With T = (I + L)^-1 diag(beta), and A[t][s] = g[t]/g[s] (q[t] k[s]) for s <= t,
//   D = T (V - diag(g) K S),  O = diag(g) Q S + A D,  S' = g[63] S + (diag(g[63]/g) K)^T D.
// This is the WY representation with the UT transform of Yang et al. (DeltaNet).
//
// chunk_factors.cu computes T and A of all chunks in parallel (ChunkFactors). chunk_states.cu
// processes the chunks of a sequence in order. It multiplies rows of q and k as stored: their
// norms, and g, are factors of sums or of float32 rows. Operands are bfloat16, all sums and S are
// float32. After a sequence's last token rows are zero and decays are 1.
#pragma once

#include "kernels/common/sm80/mma.cuh"
#include "kernels/linear_attention/linear_attention.h"
#include "kernels/linear_attention/sm80/sequences.cuh"

namespace nvllm::kernels::cuda {

inline constexpr int kChunk = static_cast<int>(kDeltaChunk);
inline constexpr int kChunkDim = static_cast<int>(kDeltaChunkDim);  // dk and dv
inline constexpr int kChunkBlocks = kChunk / 16;

// 16 x 16 blocks of a lower triangular matrix of a chunk, including the diagonal.
inline constexpr int kLowerBlocks = kChunkBlocks * (kChunkBlocks + 1) / 2;
__host__ __device__ constexpr int lower_block(int row, int column) {
  return row * (row + 1) / 2 + column;
}

// A 16 x 16 block in the registers of a warp: per lane, operand a of multiply_add(). Read as the
// rows of b^T it is two operands b: words 0 and 2, and words 1 and 3.
using Fragment = uint4;

// The factors of a chunk of a value head. A chunk's stage in chunk_state_warp.cuh holds the members
// before `a`.
struct ChunkFactors {
  Fragment t[kLowerBlocks][32];  // T
  float k_scale[kChunk];         // of rows of k: g times their norm's factor
  float d_scale[kChunk];         // of rows of D, for S': g[63]/g times the norm's factor of k
  float decay[4];                // [0]: g[63]
  Fragment a[kLowerBlocks][32];  // A
  float q_scale[kChunk];         // of rows of q: g times their norm's factor
};
static_assert(sizeof(ChunkFactors) == kDeltaChunkBytes);

// The sequences that are computed in chunks: [0] is {number of sequences, number of chunks},
// followed by {sequence, first chunk} of each, and the end: {-, number of chunks}.
using ChunkPlan = int2;

// Upper bounds of both numbers.
struct ChunkBounds {
  int sequences, chunks;
};
inline ChunkBounds chunk_bounds(const GatedDeltaRule& args) {
  const std::int64_t rows = args.out.shape[0];
  return {static_cast<int>(max_chunked_sequences(rows, args.rows.sequences())),
          static_cast<int>(max_delta_chunks(rows, args.rows.sequences()))};
}

struct ChunkParams {
  Bf16* out;
  const Bf16* qkv;
  const Bf16* z;
  const float* ba;
  const float* a_log;
  const float* dt_bias;
  const float* norm;
  float* state;
  Sequences sequences;
  ChunkPlan* plan;
  ChunkFactors* factors;  // [chunks, value heads]
  long long qkv_stride, z_stride;
  int key_heads, value_heads, group;
  float epsilon;

  __device__ __forceinline__ bool in_chunks(int sequence) const {
    const int rows = sequences.begin(sequence + 1) - sequences.begin(sequence);
    return rows >= kMinChunkedRows && sequences.slots[sequence] >= 0;
  }
  __device__ __forceinline__ const Bf16* q(long long row, int key_head) const {
    return qkv + row * qkv_stride + key_head * kChunkDim;
  }
  __device__ __forceinline__ const Bf16* k(long long row, int key_head) const {
    return q(row, key_heads + key_head);
  }
  __device__ __forceinline__ const Bf16* v(long long row, int head) const {
    return q(row, 2 * key_heads + head);
  }
};

// Enqueue the kernels: first the plan and the factors, then the states and results.
void launch_chunk_factors(const ChunkParams& p, const ChunkBounds& bounds, cudaStream_t stream);
void launch_chunk_states(const ChunkParams& p, const ChunkBounds& bounds, cudaStream_t stream);

__device__ __forceinline__ unsigned shared_address_of(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The location of 16 bytes, number `chunk` of a row, in a tile of shared memory: swizzled so that
// those of eight rows lie in different banks. kPieces: per row, 4 or more.
template <int kPieces>
__device__ __forceinline__ int piece_of(int row, int piece) {
  constexpr int kRowsOfBanks = kPieces >= 8 ? 1 : 8 / kPieces;  // rows per 128 bytes
  return row * kPieces + (piece ^ (row / kRowsOfBanks) % (kPieces < 8 ? kPieces : 8));
}

// 16 rows and the columns 16 i to 16 i + 15 of a tile with kPieces per row: words 0 and 1 hold rows
// 0 to 7 and 8 to 15 of the first 8 columns, words 2 and 3 those of the others.
template <int kPieces>
__device__ __forceinline__ Quad load_block(unsigned tile, int first_row, int i, int lane) {
  const int row = first_row + lane % 16, piece = 2 * i + lane / 16;
  return load_matrices<false>(tile + piece_of<kPieces>(row, piece) * 16);
}
template <int kPieces>
__device__ __forceinline__ Quad load_block_transposed(unsigned tile, int first_row, int i,
                                                      int lane) {
  const int row = first_row + lane % 16, piece = 2 * i + lane / 16;
  return load_matrices<true>(tile + piece_of<kPieces>(row, piece) * 16);
}

// Two adjacent 16 x 8 accumulators as a fragment.
__device__ __forceinline__ Quad fragment_of(const float (&low)[4], const float (&high)[4]) {
  return {{pack<Bf16>(low[0], low[1]), pack<Bf16>(low[2], low[3]), pack<Bf16>(high[0], high[1]),
           pack<Bf16>(high[2], high[3])}};
}
__device__ __forceinline__ Quad quad_of(const Fragment& f) {
  return {{f.x, f.y, f.z, f.w}};
}
__device__ __forceinline__ Fragment fragment_of(const Quad& q) {
  return {q.word[0], q.word[1], q.word[2], q.word[3]};
}

// Sixteen columns of sum += a b; `b` holds 16 rows of b^T as loaded by load_block(), or 16 columns
// of b as loaded by load_block_transposed().
__device__ __forceinline__ void multiply_add_pair(float (&low)[4], float (&high)[4], const Quad& a,
                                                  const Quad& b) {
  multiply_add<Bf16>(low, a, b.word[0], b.word[2]);
  multiply_add<Bf16>(high, a, b.word[1], b.word[3]);
}
__device__ __forceinline__ void multiply_add_pair_transposed(float (&low)[4], float (&high)[4],
                                                             const Quad& a, const Quad& b) {
  multiply_add<Bf16>(low, a, b.word[0], b.word[1]);
  multiply_add<Bf16>(high, a, b.word[2], b.word[3]);
}

}  // namespace nvllm::kernels::cuda
