// Invariant decode attention on Hopper (invariant_decode.cu) by blocks of one, two or four warps,
// for many sequences: the work of a warp.
//
// A block has one sequence and KV head. If there are many of them, a block is one warp: several
// blocks per multiprocessor keep the memory busy, so that nothing needs to be split. If there are
// fewer, a block has two or four warps. As in the prefill kernel (consumer.cuh), tiles of 128
// tokens are processed from the last to the first: a tile's scores, then its weights by the rules
// of Rows (softmax_rows.cuh), then one chain of weighted values over all tokens. Operand A of the
// tensor cores holds keys and values, 16 tokens or columns at a time, operand B the 8 rows.
//
// Bulk copies fill rings of stages with keys and values. If there are several warps, each computes
// the scores and weights of some of a tile's tokens, and some columns of the values; they exchange
// the weights in shared memory. Of two warps each copies the columns that it multiplies; of four,
// whose rows would be too short for that, each copies some tokens for all.
#pragma once

#include "kernels/attention/sm80/mma_rows.cuh"
#include "kernels/attention/sm90/softmax_rows.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"

namespace nvllm::kernels::cuda::invariant_decode::warps {

inline constexpr int kTileTokens = sm90::kTokens<128>, kStepTokens = 16,
                     kTileSteps = kTileTokens / kStepTokens;
inline constexpr int kStages = 3;        // of a ring of keys, or of values
inline constexpr int kStageTokens = 32;  // of a warp, in a stage of keys
inline constexpr int kStageBoxes = kStageTokens / kStepTokens;

template <int D, int kWarps>
struct Layout {
  static constexpr int kColumns = D / kWarps;  // of the values that a warp multiplies
  // Whether warps copy values for each other, in one ring.
  static constexpr bool kShared = kWarps > 2;
  static constexpr int kTileStages = kTileTokens / kStageTokens / kWarps;
  static constexpr int kStage = kStageTokens * D * 2;  // bytes that a warp copies
  static constexpr int kKeyBox = kStepTokens * D * 2;
  static constexpr int kValueBox = kStepTokens * (kShared ? D : kColumns) * 2;
  static_assert(kTileStages == 1 || !kShared);
  static_assert(kColumns % (kShared ? 16 : sm90::kHalf) == 0);
  static constexpr int kValues = kWarps * kStages * kStage;
  // Data that warps exchange, double-buffered: [kTileSteps][32] float4, then as many uint2.
  static constexpr int kExchanged = 2 * kValues;
  static constexpr int kExchangedFloats = kTileSteps * 32 * 16;
  static constexpr int kExchangedBytes = kWarps == 1 ? 0 : kExchangedFloats * 3 / 2;
  // Each warp's keys, then each warp's values, or the shared ones.
  static constexpr int kBarriers = kExchanged + 2 * kExchangedBytes;
  static constexpr int kBytes = kBarriers + 2 * kWarps * kStages * 8;
};

#if __CUDA_ARCH__ >= 900

// The transpose of an 8 x 8 matrix of 16-bit floats, of which lane l has elements 2 (l % 4) and the
// next of row l / 4.
__device__ __forceinline__ unsigned transpose(unsigned pair) {
  unsigned transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// The address of a chunk of 8 elements in a box of 16 tokens, where the upper halves of all rows
// follow the lower ones.
__device__ __forceinline__ unsigned chunk_of_box(unsigned box, int token, int chunk) {
  return box + (chunk / 8 * kStepTokens + token) * sm90::kRowBytes +
         ((chunk & 7) ^ (token & 7)) * 16;
}

// The maximum, or the sum, over the lanes that have the same row.
__device__ __forceinline__ float max_over_tokens(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}

// Scores and their weights: a lane has tokens lane / 4 and lane / 4 + 8 of each 16, and of these
// packed rows 2 (lane % 4) and the next.
template <typename T, int D, int kWarps>
class Warp {
 public:
  using Here = Layout<D, kWarps>;
  static constexpr int kOwnSteps = kTileSteps / kWarps;

  __device__ __forceinline__ Warp(const AttentionPart<T>& part, const CUtensorMap& keys,
                                  const CUtensorMap& values, unsigned char* memory)
      : part_(part),
        keys_(keys),
        values_(values),
        memory_(memory),
        base_(shared_address(memory)),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        scale_(part.p.scale * kLog2E),
        tiles_((part.tokens + kTileTokens - 1) / kTileTokens),
        key_blocks_{find_block(0), find_block(1)},
        value_blocks_(key_blocks_) {}

  // history_is_visible: see Attention. The previous kernel may then still be running.
  __device__ __forceinline__ void run(bool history_is_visible) {
    const int first_blocks = key_blocks_.now;
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (!history_is_visible || !has_new_token<true>(i)) copy<true>(i);
      if (!history_is_visible || !has_new_token<false>(i)) copy<false>(i);
    }
    if (history_is_visible) {
      pdl_begin();
#pragma unroll
      for (int i = 0; i < kStages; ++i) {
        if (has_new_token<true>(i)) start<true>(i, first_blocks);
        if (has_new_token<false>(i)) start<false>(i, first_blocks);
      }
    }
    load_queries();
    for (int i = 0; i < tiles_; ++i) {
      float4 own[kOwnSteps];
      multiply_keys(i, own);
      weigh(i, own);
      multiply_values(i);
    }
    write();
  }

 private:
  __device__ __forceinline__ int first_token(int tile) const {
    return (tiles_ - 1 - tile) * kTileTokens;
  }

  // --- copies: stages of a ring, of all tiles, are numbered ---

  // Lanes 0 to 7: the cache blocks of the lane's 16 tokens of the tile that is copied, and of the
  // one after it.
  struct Blocks {
    int now, next;
  };

  template <bool kKeys>
  __device__ __forceinline__ Barrier arrived(int i) const {
    const int of_warp = kKeys || !Here::kShared ? warp_ * kStages : 0;
    return {base_ + Here::kBarriers + ((kKeys ? 0 : kWarps * kStages) + of_warp + i % kStages) * 8};
  }
  __device__ __forceinline__ unsigned keys_at(int i) const {
    return base_ + (warp_ * kStages + i % kStages) * Here::kStage;
  }
  __device__ __forceinline__ unsigned values_at(int i) const {
    const int stage = i % kStages;
    return base_ + Here::kValues +
           (Here::kShared ? stage * kWarps : warp_ * kStages + stage) * Here::kStage;
  }
  __device__ __forceinline__ static unsigned parity(int i) {
    return i / kStages & 1;
  }

  __device__ __forceinline__ int find_block(int tile) const {
    const auto& p = part_.p;
    if (p.block_table == nullptr) return part_.sequence;
    const int token = first_token(tile) + lane_ % kTileSteps * kStepTokens;
    if (tile >= tiles_ || token >= part_.tokens) return 0;
    const int block = p.block_shift >= 0 ? token >> p.block_shift : token / p.block_size;
    return p.block_table[static_cast<long long>(part_.sequence) * p.table_width + block];
  }

  // What this warp copies of a stage: its first token in the tile, and how many boxes.
  template <bool kKeys>
  __device__ __forceinline__ int token_of(int i) const {
    const int within = i % Here::kTileStages;
    if (kKeys || Here::kShared) return (warp_ * Here::kTileStages + within) * kStageTokens;
    return within * kStageTokens * kWarps;
  }
  template <bool kKeys>
  static constexpr int kBoxes = kStageBoxes*(kKeys || Here::kShared ? 1 : kWarps);

  // Whether that has the sequence's last token.
  template <bool kKeys>
  __device__ __forceinline__ bool has_new_token(int i) const {
    const int last = part_.tokens - 1 - first_token(0) - token_of<kKeys>(i);
    return i < Here::kTileStages && last >= 0 && last < kBoxes<kKeys> * kStepTokens;
  }

  // To be called for one stage after the other.
  template <bool kKeys>
  __device__ __forceinline__ void copy(int i) {
    const int tile = i / Here::kTileStages;
    Blocks& blocks = kKeys ? key_blocks_ : value_blocks_;
    if (tile > 0 && i % Here::kTileStages == 0) blocks = {blocks.next, find_block(tile + 1)};
    start<kKeys>(i, blocks.now);
  }
  template <bool kKeys>
  __device__ __forceinline__ void start(int i, int blocks) const {
    const int tile = i / Here::kTileStages;
    if (tile >= tiles_) return;
    const int token = token_of<kKeys>(i), first = first_token(tile) + token;
    const int boxes =
        max(0, min(kBoxes<kKeys>, (part_.tokens - first + kStepTokens - 1) / kStepTokens));
    constexpr int kBytes = kKeys ? Here::kKeyBox : Here::kValueBox;
    const Barrier barrier = arrived<kKeys>(i);
    if (lane_ == 0) barrier.arrive_and_expect(boxes * kBytes);
    const int block = __shfl_sync(~0u, blocks, token / kStepTokens + lane_);
    if (lane_ >= boxes) return;
    int within = first + lane_ * kStepTokens;
    const auto& p = part_.p;
    if (p.block_table != nullptr)
      within = p.block_shift >= 0 ? within & (p.block_size - 1) : within % p.block_size;
    const int half = kKeys || Here::kShared ? 0 : warp_ * (Here::kColumns / sm90::kHalf);
    const int box = (!kKeys && Here::kShared ? warp_ * kStageBoxes : 0) + lane_;
    copy_box((kKeys ? keys_at(i) : values_at(i)) + box * kBytes, kKeys ? keys_ : values_, 0, within,
             half, part_.kv_head, block, barrier, evict_first_);
  }

  // --- scores ---

  __device__ __forceinline__ void load_queries() {
    const int row = lane_ / 4;
    const bool valid = row < part_.packed_rows;
    const T* const from = valid ? part_.query(row) + 2 * (lane_ % 4) : part_.p.q;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto* const word = reinterpret_cast<const unsigned*>(from + step * 16 + half * 8);
        queries_[step][half] = valid ? *word : 0;
      }
    }
  }

  // The warp's own scores of a tile.
  __device__ __forceinline__ void multiply_keys(int tile, float4 (&own)[kOwnSteps]) {
    const int row = lane_ % 16, half = lane_ / 16;
#pragma unroll
    for (int stage = 0; stage < Here::kTileStages; ++stage) {
      const int i = tile * Here::kTileStages + stage;
      arrived<true>(i).wait(parity(i));
      const unsigned keys = keys_at(i);
      float sum[kStageBoxes][4] = {};
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
#pragma unroll
        for (int box = 0; box < kStageBoxes; ++box) {
          const Quad k =
              load_matrices<false>(chunk_of_box(keys + box * Here::kKeyBox, row, step * 2 + half));
          multiply_add<T>(sum[box], k, queries_[step][0], queries_[step][1]);
        }
      }
      const int tokens = part_.tokens - first_token(tile) - token_of<true>(i);
#pragma unroll
      for (int box = 0; box < kStageBoxes; ++box) {
        const float* const s = sum[box];
        own[kStageBoxes * stage + box] =
            masked(make_float4(s[0], s[1], s[2], s[3]), tokens - box * kStepTokens);
      }
      __syncwarp();
      copy<true>(i + kStages);
    }
  }

  // Masks the tokens from `tokens` on, of 16.
  __device__ __forceinline__ float4 masked(float4 s, int tokens) const {
    const int own = lane_ / 4;
    if (own >= tokens) s.x = s.y = -INFINITY;
    if (own + 8 >= tokens) s.z = s.w = -INFINITY;
    return s;
  }

  // --- weights ---

  // The buffer through which warps exchange their parts of a tile.
  __device__ __forceinline__ float4* exchanged(int tile) const {
    return reinterpret_cast<float4*>(memory_ + Here::kExchanged +
                                     tile % 2 * Here::kExchangedBytes) +
           lane_;
  }
  __device__ __forceinline__ uint2* exchanged_weights(int tile) const {
    return reinterpret_cast<uint2*>(memory_ + Here::kExchanged + tile % 2 * Here::kExchangedBytes +
                                    Here::kExchangedFloats) +
           lane_;
  }

  // The scores of the whole tile. All warps call it together, and need another barrier before they
  // do so again with the same buffer.
  __device__ __forceinline__ void gather(int tile, const float4 (&own)[kOwnSteps],
                                         float4 (&scores)[kTileSteps]) const {
    if constexpr (kWarps == 1) {
#pragma unroll
      for (int step = 0; step < kTileSteps; ++step) scores[step] = own[step];
    } else {
      float4* const all = exchanged(tile);
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step) all[(warp_ * kOwnSteps + step) * 32] = own[step];
      __syncthreads();
#pragma unroll
      for (int step = 0; step < kTileSteps; ++step) scores[step] = all[step * 32];
    }
  }

  // The weights of a tile, and their sums. The first tile gives rows their reference; later, a row
  // whose weights are too large takes another one.
  __device__ __forceinline__ void weigh(int tile, const float4 (&own)[kOwnSteps]) {
    float sums[2];
    float4 scores[kTileSteps];
    if (tile == 0) {
      gather(tile, own, scores);
      float maxima[2];
      max_of(scores, maxima);
#pragma unroll
      for (int row = 0; row < 2; ++row) reference_[row] = fmaxf(-INFINITY, maxima[row] * scale_);
      exponentiate_all(scores, sums);
    } else {
      exponentiate_own(tile, own, sums);
      const bool too_large[2] = {!(sums[0] <= sm90::kMaxWeight<T>),
                                 !(sums[1] <= sm90::kMaxWeight<T>)};
      if (__any_sync(~0u, too_large[0] || too_large[1])) {  // all warps agree
        if constexpr (kWarps > 1) __syncthreads();
        gather(tile, own, scores);
        raise(too_large, scores, sums);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) sum_[row] = __fadd_rn(sum_[row], sums[row]);
  }

  __device__ __forceinline__ void raise(const bool (&too_large)[2],
                                        const float4 (&scores)[kTileSteps], float (&sums)[2]) {
    float maxima[2], factors[2];
    max_of(scores, maxima);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = reference_[row];
      const unsigned lanes = __ballot_sync(~0u, too_large[row]);
      if ((lanes & 0x11111111u << lane_ % 4) != 0)
        reference_[row] = fmaxf(before, maxima[row] * scale_);
      factors[row] = power_of_2(before - reference_of(reference_[row]));
      sum_[row] = __fmul_rn(sum_[row], factors[row]);
    }
    exponentiate_all(scores, sums);
#pragma unroll
    for (auto& out : out_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] *= factors[i % 2];
    }
  }

  __device__ __forceinline__ static void max_of(const float4 (&scores)[kTileSteps],
                                                float (&maxima)[2]) {
    maxima[0] = maxima[1] = -INFINITY;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      maxima[0] = fmaxf(maxima[0], fmaxf(scores[step].x, scores[step].z));
      maxima[1] = fmaxf(maxima[1], fmaxf(scores[step].y, scores[step].w));
    }
    maxima[0] = max_over_tokens(maxima[0]), maxima[1] = max_over_tokens(maxima[1]);
  }

  // Weights of 16 tokens as floats, in the place of their scores.
  __device__ __forceinline__ float4 exponentiate(const float4& s) const {
    const float references[2] = {reference_of(reference_[0]), reference_of(reference_[1])};
    return make_float4(power_of_2(fmaf(s.x, scale_, -references[0])),
                       power_of_2(fmaf(s.y, scale_, -references[1])),
                       power_of_2(fmaf(s.z, scale_, -references[0])),
                       power_of_2(fmaf(s.w, scale_, -references[1])));
  }
  // The same weights as right operands.
  __device__ __forceinline__ static uint2 operand_of(const float4& w) {
    return make_uint2(transpose(pack<T>(w.x, w.y)), transpose(pack<T>(w.z, w.w)));
  }

  // Sums are of the tokens whose indices are congruent modulo 8, in order, and then across lanes.
  __device__ __forceinline__ static void add_step(int step, const float4& w, float (&sums)[2]) {
    sums[0] = step == 0 ? w.x : __fadd_rn(sums[0], w.x);
    sums[1] = step == 0 ? w.y : __fadd_rn(sums[1], w.y);
    sums[0] = __fadd_rn(sums[0], w.z);
    sums[1] = __fadd_rn(sums[1], w.w);
  }
  __device__ __forceinline__ static void add_neighbours(float (&sums)[2]) {
    sums[0] = __fadd_rn(sums[0], __shfl_xor_sync(~0u, sums[0], 4));
    sums[1] = __fadd_rn(sums[1], __shfl_xor_sync(~0u, sums[1], 4));
  }

  __device__ __forceinline__ void exponentiate_all(const float4 (&scores)[kTileSteps],
                                                   float (&sums)[2]) {
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const float4 w = exponentiate(scores[step]);
      add_step(step, w, sums);
      weights_[step] = operand_of(w);
    }
    add_neighbours(sums);
  }

  // Each warp does it for its own tokens.
  __device__ __forceinline__ void exponentiate_own([[maybe_unused]] int tile,
                                                   const float4 (&own)[kOwnSteps],
                                                   float (&sums)[2]) {
    if constexpr (kWarps == 1) {
      exponentiate_all(own, sums);
    } else {
      float4* const floats = exchanged(tile);
      uint2* const operands = exchanged_weights(tile);
#pragma unroll
      for (int step = 0; step < kOwnSteps; ++step) {
        const int at = (warp_ * kOwnSteps + step) * 32;
        const float4 w = exponentiate(own[step]);
        floats[at] = w, operands[at] = operand_of(w);
      }
      __syncthreads();
      // All warps have multiplied the previous values.
      if constexpr (Here::kShared) copy<false>(tile - 1 + kStages);
#pragma unroll
      for (int step = 0; step < kTileSteps; ++step) {
        add_step(step, floats[step * 32], sums);
        weights_[step] = operands[step * 32];
      }
      add_neighbours(sums);
    }
  }

  // --- values ---

  __device__ __forceinline__ void multiply_values(int tile) {
    const int row = lane_ / 16 * 8 + lane_ % 8, half = lane_ / 8 % 2;
    constexpr int kSteps = kTileSteps / Here::kTileStages;  // of a stage
#pragma unroll
    for (int stage = 0; stage < Here::kTileStages; ++stage) {
      const int i = tile * Here::kTileStages + stage;
      arrived<false>(i).wait(parity(i));
      const unsigned values = values_at(i);
      const int tokens = part_.tokens - first_token(tile) - stage * kSteps * kStepTokens;
      const auto add_step = [&](int step) {
        const uint2 weights = weights_[stage * kSteps + step];
#pragma unroll
        for (int columns = 0; columns < Here::kColumns / 16; ++columns) {
          const Quad v = load_matrices<true>(
              chunk_of_box(values + step * Here::kValueBox, row, chunk(columns * 2 + half)));
          multiply_add<T>(out_[columns], v, weights.x, weights.y);
        }
      };
      if (tokens >= kSteps * kStepTokens) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) add_step(step);
      } else {
        clear(values, tokens);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          if (step * kStepTokens < tokens) add_step(step);
        }
      }
      __syncwarp();
      if constexpr (!Here::kShared) copy<false>(i + kStages);
    }
  }

  // The place in a box of a chunk of the warp's columns.
  __device__ __forceinline__ int chunk(int own) const {
    return (Here::kShared ? warp_ * (Here::kColumns / 8) : 0) + own;
  }

  // Zeroes the warp's columns of values past the last token, which may be anything, in the box that
  // contains it.
  __device__ __forceinline__ void clear(unsigned values, int tokens) const {
    constexpr int kChunks = Here::kColumns / 8;
    const int end = (max(tokens, 0) + kStepTokens - 1) / kStepTokens * kStepTokens;
    for (int i = max(tokens, 0) * kChunks + lane_; i < end * kChunks; i += 32) {
      const int token = i / kChunks;
      const unsigned to = chunk_of_box(values + token / kStepTokens * Here::kValueBox,
                                       token % kStepTokens, chunk(i % kChunks));
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    __syncwarp();
  }

  __device__ __forceinline__ void write() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[i] = __fadd_rn(sum_[i], __shfl_xor_sync(~0u, sum_[i], 8));
      sum_[i] = __fadd_rn(sum_[i], __shfl_xor_sync(~0u, sum_[i], 16));
      const int row = lane_ % 4 * 2 + i;
      if (row >= part_.packed_rows) continue;
      const long long index = part_.index(row);
      part_.p.add_sink(index, reference_[i], sum_[i]);
      const float factor = sum_[i] == 0 ? 0.0f : 1 / sum_[i];
      const long long to = index * D + warp_ * Here::kColumns + lane_ / 4;
#pragma unroll
      for (int columns = 0; columns < Here::kColumns / 16; ++columns) {
        part_.p.store(to + columns * 16, out_[columns][i] * factor);
        part_.p.store(to + columns * 16 + 8, out_[columns][2 + i] * factor);
      }
      if (part_.p.lse != nullptr && lane_ < 4 && warp_ == 0)
        part_.p.lse[index] = log_sum_exp(reference_[i], sum_[i]);
    }
  }

  const AttentionPart<T>& part_;
  const CUtensorMap& keys_;
  const CUtensorMap& values_;
  unsigned char* const memory_;
  const unsigned base_;
  const int warp_, lane_;
  const float scale_;
  const int tiles_;
  const EvictFirst evict_first_;  // the L2 cache: no other block reads them
  Blocks key_blocks_, value_blocks_;
  unsigned queries_[D / 16][2];
  uint2 weights_[kTileSteps];
  float reference_[2] = {-INFINITY, -INFINITY}, sum_[2] = {0, 0};
  float out_[Here::kColumns / 16][4] = {};
};

#endif

}  // namespace nvllm::kernels::cuda::invariant_decode::warps
