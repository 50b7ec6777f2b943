// A part of chunk_states.cu, which explains the whole: the work and the shared memory of a block,
// and its state warps.
#pragma once

#include "kernels/common/sm80/types.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/linear_attention/sm80/chunk_delta_rule.cuh"

namespace nvllm::kernels::cuda::chunk_states {

inline constexpr int kResultWarps = kChunk / 16;
inline constexpr int kPieces = kChunkDim / 8;  // of 16 bytes, of a row of q or k
inline constexpr int kKeyBlocks = kChunkDim / 16;
inline constexpr int kTiles = kChunkDim / 16;  // of a head: 16 columns of values, for one StateWarp

// kOwn: tiles per block.
template <int kOwn>
struct Shared {
  static constexpr int kSlices = kTiles / kOwn;
  static constexpr int kValuePieces = 2 * kOwn;

  // The leading members of ChunkFactors.
  struct Factors {
    Fragment t[kLowerBlocks][32];
    float k_scale[kChunk], d_scale[kChunk], decay[4];
  };

  Fragment k[2][kChunk * kPieces], v[2][kChunk * kValuePieces];
  Factors factors[2];
  Fragment q[kResultWarps][2][16 * kPieces];
  Fragment s[kOwn][kKeyBlocks][32], d[kOwn][kChunkBlocks][32];
  float2 squares[2][kResultWarps][kSlices][8];  // by the block that sends them
  unsigned long long arrived[2][kResultWarps];
};

// Named barriers; kLoaded is for all threads.
enum BarrierNumber { kLoaded = 1, kStateThere, kStateRead, kChangeThere, kChangeRead };

// The work of a block: some columns of a value head in a sequence.
struct Item {
  int sequence, head, first_chunk, slice;
  long long begin, end;  // rows

  __device__ __forceinline__ int chunks() const {
    return static_cast<int>((end - begin + kChunk - 1) / kChunk);
  }
  __device__ __forceinline__ long long row(int chunk) const {
    return begin + static_cast<long long>(chunk) * kChunk;
  }
  __device__ __forceinline__ int rows(int chunk) const {
    const long long left = end - row(chunk);
    return static_cast<int>(left < kChunk ? left : kChunk);
  }
  __device__ __forceinline__ const ChunkFactors& factors(const ChunkParams& p, int chunk) const {
    return p.factors[static_cast<long long>(first_chunk + chunk) * p.value_heads + head];
  }
};

// A warp that has 16 columns of a head's state, from a sequence's first chunk to its last.
template <int kOwn>
class StateWarp {
 public:
  using Memory = Shared<kOwn>;
  static constexpr int kThreads = kOwn * 32, kAll = (kOwn + kResultWarps) * 32;
  static constexpr int kValuePieces = Memory::kValuePieces;

  __device__ __forceinline__ StateWarp(const ChunkParams& p, Memory& shared)
      : p_(p),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run(const Item& item) {
    const int column = (item.slice * kOwn + warp_) * 16 + lane_ / 4;
    const long long slot = p_.sequences.slots[item.sequence];
    float* const state =
        p_.state + (slot * p_.value_heads + item.head) * kChunkDim * kChunkDim + column;
    load(item, 0);
    load_state(state, p_.sequences.starts(item.sequence));
    for (int chunk = 0; chunk < item.chunks(); ++chunk) {
      wait_for_copies<0>();
      sync_threads(kLoaded, kThreads);  // of all threads; also: the previous chunk has been read
      const int stage = stage_;
      stage_ ^= 1;
      if (chunk + 1 < item.chunks()) load(item, chunk + 1);
      step(stage);
    }
    store_state(state);
  }

  // After the last item: consumes the last arrivals of the result warps.
  __device__ __forceinline__ void end() const {
    sync_threads(kStateRead, kAll);
    sync_threads(kChangeRead, kAll);
  }

 private:
  // Loads into the next stage.
  __device__ __forceinline__ void load(const Item& item, int chunk) const {
    const int rows = item.rows(chunk), thread = static_cast<int>(threadIdx.x);
    const long long first = item.row(chunk);
#pragma unroll 1
    for (int i = thread; i < kChunk * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const bool inside = row < rows;
      const Bf16* const from = p_.k(first + (inside ? row : 0), item.head / p_.group) + piece * 8;
      copy_chunk(shared_address_of(&shared_.k[stage_][piece_of<kPieces>(row, piece)]), from,
                 inside);
    }
#pragma unroll 1
    for (int i = thread; i < kChunk * kValuePieces; i += kThreads) {
      const int row = i / kValuePieces, piece = i % kValuePieces;
      const bool inside = row < rows;
      const Bf16* const from =
          p_.v(first + (inside ? row : 0), item.head) + item.slice * kOwn * 16 + piece * 8;
      copy_chunk(shared_address_of(&shared_.v[stage_][piece_of<kValuePieces>(row, piece)]), from,
                 inside);
    }
    const auto* const from = reinterpret_cast<const Fragment*>(&item.factors(p_, chunk));
    const unsigned to = shared_address_of(&shared_.factors[stage_]);
#pragma unroll 1
    for (int i = thread; i < static_cast<int>(sizeof(typename Memory::Factors) / 16);
         i += kThreads) {
      copy_chunk(to + i * 16, from + i, true);
    }
    commit_copies();
  }

  __device__ __forceinline__ void step(int stage) {
    const typename Memory::Factors& factors = shared_.factors[stage];
    const unsigned k = shared_address_of(shared_.k[stage]);
    float x[kChunk / 8][4]{};
    multiply_keys(x, k);
    subtract_from_values(x, factors, shared_address_of(shared_.v[stage]));
    Quad d[kChunkBlocks];
    solve(d, x, factors);
    add_to_state(d, factors.decay[0], k);
  }

  // S^T K^T; also passes S to the result warps.
  __device__ __forceinline__ void multiply_keys(float (&x)[kChunk / 8][4], unsigned k) {
    sync_threads(kStateRead, kAll);
#pragma unroll
    for (int i = 0; i < kKeyBlocks; ++i) {
      const Quad of_s = fragment_of(s_[2 * i], s_[2 * i + 1]);
      shared_.s[warp_][i][lane_] = fragment_of(of_s);
#pragma unroll
      for (int block = 0; block < kChunkBlocks; ++block) {
        multiply_add_pair(x[2 * block], x[2 * block + 1], of_s,
                          load_block<kPieces>(k, block * 16, i, lane_));
      }
    }
    arrive_at(kStateThere, kAll);
  }

  // x = V^T - x diag(g)
  __device__ __forceinline__ void subtract_from_values(float (&x)[kChunk / 8][4],
                                                       const typename Memory::Factors& factors,
                                                       unsigned v) const {
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      const Quad of_v = load_block_transposed<kValuePieces>(v, block * 16, warp_, lane_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 scale = *reinterpret_cast<const float2*>(
            &factors.k_scale[block * 16 + half * 8 + lane_ % 4 * 2]);
        float(&to)[4] = x[2 * block + half];
        const unsigned upper = of_v.word[half], lower = of_v.word[2 + half];
        to[0] = fmaf(-scale.x, to[0], low(upper)), to[1] = fmaf(-scale.y, to[1], high(upper));
        to[2] = fmaf(-scale.x, to[2], low(lower)), to[3] = fmaf(-scale.y, to[3], high(lower));
      }
    }
  }

  // D^T = x T^T. The result warps receive it unscaled; `d` is scaled for the state.
  __device__ __forceinline__ void solve(Quad (&d)[kChunkBlocks], const float (&x)[kChunk / 8][4],
                                        const typename Memory::Factors& factors) {
    Quad of_x[kChunkBlocks];
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      of_x[block] = fragment_of(x[2 * block], x[2 * block + 1]);
    }
    float sum[kChunk / 8][4]{};
#pragma unroll
    for (int column = 0; column < kChunkBlocks; ++column) {
#pragma unroll
      for (int row = column; row < kChunkBlocks; ++row) {
        multiply_add_pair(sum[2 * row], sum[2 * row + 1], of_x[column],
                          quad_of(factors.t[lower_block(row, column)][lane_]));
      }
    }
    sync_threads(kChangeRead, kAll);
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      shared_.d[warp_][block][lane_] = fragment_of(fragment_of(sum[2 * block], sum[2 * block + 1]));
    }
    arrive_at(kChangeThere, kAll);
#pragma unroll
    for (int i = 0; i < kChunk / 8; ++i) {
      const float2 scale =
          *reinterpret_cast<const float2*>(&factors.d_scale[i * 8 + lane_ % 4 * 2]);
      sum[i][0] *= scale.x, sum[i][1] *= scale.y, sum[i][2] *= scale.x, sum[i][3] *= scale.y;
    }
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
      d[block] = fragment_of(sum[2 * block], sum[2 * block + 1]);
    }
  }

  // S^T = decay S^T + d K
  __device__ __forceinline__ void add_to_state(const Quad (&d)[kChunkBlocks], float decay,
                                               unsigned k) {
#pragma unroll
    for (int i = 0; i < kKeyBlocks; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s_[2 * i][e] *= decay, s_[2 * i + 1][e] *= decay;
    }
#pragma unroll
    for (int block = 0; block < kChunkBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kKeyBlocks; ++i) {
        multiply_add_pair_transposed(s_[2 * i], s_[2 * i + 1], d[block],
                                     load_block_transposed<kPieces>(k, block * 16, i, lane_));
      }
    }
  }

  __device__ __forceinline__ static float low(unsigned pair) {
    return __uint_as_float(pair << 16);
  }
  __device__ __forceinline__ static float high(unsigned pair) {
    return __uint_as_float(pair & 0xffff0000u);
  }

  // `state`: at this lane's first column.
  __device__ __forceinline__ float* state_at(float* state, int i, int e) const {
    const int row = i * 8 + lane_ % 4 * 2 + e % 2;
    return state + row * kChunkDim + e / 2 * 8;
  }
  __device__ __forceinline__ void load_state(float* state, bool starts) {
#pragma unroll
    for (int i = 0; i < kChunkDim / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s_[i][e] = starts ? 0.0f : *state_at(state, i, e);
    }
  }
  __device__ __forceinline__ void store_state(float* state) const {
#pragma unroll
    for (int i = 0; i < kChunkDim / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) *state_at(state, i, e) = s_[i][e];
    }
  }

  const ChunkParams& p_;
  Memory& shared_;
  const int warp_, lane_;
  int stage_ = 0;
  float s_[kChunkDim / 8][4];  // S^T: 16 columns of S, all rows
};

}  // namespace nvllm::kernels::cuda::chunk_states
