// Attention of many query rows per sequence on Hopper: a block has 128 packed rows of a sequence and a KV head,
// or several such pieces one after the other, 64 rows per consumer warpgroup, whose tensor cores work on tiles of
// 128 tokens that a producer warpgroup has copied in bulk. A warpgroup takes the weights of one tile while its tensor
// cores still add up the tile before; the two take turns, so that one's weights are taken under the other's products.
//
// The last tile of tokens is the first to be worked on: it alone, and the few before it that a block's rows
// end in, need masks.
#pragma once

#include "kernels/attention/sm90/producer.cuh"
#include "kernels/common/sm90/wgmma.cuh"

namespace nvllm::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What this thread has of them (wgmma.cuh): parts of two rows.
template <typename T, int D>
struct Rows {
  float scores[kTokens / 2];
  float out[D / 2];
  unsigned weights[kTokens / 16][4];  // as left factors
  // A weight is 2^(score * scale - reference), whose reference is the highest exponent of the first tile that the row
  // sees. It stays as tiles go by: a higher one takes its place only where weights become too large (too_heavy()).
  float reference[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of the weights of this thread's columns
  // Of the last tile's weights, in two parts, which add_up() adds to `sum`. At first as if they were too heavy.
  float tile_sums[2][2] = {{INFINITY, INFINITY}, {INFINITY, INFINITY}};

  // scores = q k^T, enqueued.
  __device__ __forceinline__ void multiply_keys(unsigned queries, unsigned keys) {
    const std::uint64_t left = wgmma_factor(queries, 16, 1024);
    const std::uint64_t right = wgmma_factor(keys, 16, 1024);
    hold(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const unsigned half = k / 4, step = k % 4 * 32;
      wgmma<T>(scores, wgmma_factor_behind(left, half * kRows * kRowBytes + step),
               wgmma_factor_behind(right, half * kTokens * kRowBytes + step), k > 0);
    }
    wgmma_commit();
  }

  // out += weights v, enqueued.
  __device__ __forceinline__ void multiply_values(unsigned values, bool first) {
    const std::uint64_t right = wgmma_factor(values, kTokens * kRowBytes, 1024);
    hold(out);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      wgmma<T>(out, weights[k], wgmma_factor_behind(right, k * 16 * kRowBytes), !first || k > 0);
    }
    wgmma_commit();
  }

  // Columns from visible[i] on do not count.
  __device__ __forceinline__ void mask(const int (&visible)[2], int lane) {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = j * 8 + lane % 4 * 2 + i % 2;
        if (column >= visible[i / 2]) scores[4 * j + i] = -INFINITY;
      }
    }
  }

  // Scores of columns 8 * from to 8 * to become weights, relative to these references.
  template <int kFrom, int kTo>
  __device__ __forceinline__ void exponentiate(float scale, const float (&references)[2]) {
#pragma unroll
    for (int j = kFrom; j < kTo; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * j + i];
        score = power_of_2(score * scale - references[i / 2]);
        float& total = tile_sums[i / 2][i % 2];
        total = j == 0 ? score : total + score;
      }
    }
  }

  // Whether a row's weights of the last tile are so large that it needs another reference, or it had none.
  __device__ __forceinline__ bool needs_rescale() const {
    return needs_rescale(0) || needs_rescale(1);
  }

  // All of a tile's scores become weights, after rows that need it have taken the highest exponent so far as their
  // reference; what they added up before fades. What becomes of a row does not depend on others.
  __device__ __forceinline__ void rescale_and_exponentiate(float scale) {
    float maxima[2], references[2], rescale[2];
    find_row_max(maxima);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = reference[row];
      unsigned raised = needs_rescale(row);
      raised |= __shfl_xor_sync(~0u, raised, 1);
      raised |= __shfl_xor_sync(~0u, raised, 2);
      if (raised) reference[row] = fmaxf(before, maxima[row] * scale);
      references[row] = reference_of(reference[row]);
      rescale[row] = power_of_2(before - references[row]);
      sum[row] *= rescale[row];
    }
    exponentiate<0, kTokens / 8>(scale, references);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * j + i] *= rescale[i / 2];
    }
  }

  __device__ __forceinline__ void add_row_sums() {
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] += tile_sums[row][0] + tile_sums[row][1];
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = pack(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
      }
    }
  }

  __device__ __forceinline__ void write(const AttentionRows<T>& part, int row, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
      const int packed_row = row + lane / 4 + 8 * i;
      const bool exists = packed_row < part.packed_rows;
      const long long index = part.index(exists ? packed_row : 0);
      const float factor = sum[i] == 0 ? 0.0f : 1 / sum[i];
      if (part.p.floats != nullptr) {
        if (exists) write_floats(part.p.floats + index * D + lane % 4 * 2, i, factor);
      } else {
        write_rounded(part.p.out + index * D, i, factor, exists, lane % 4);
      }
      if (exists && part.p.lse != nullptr && lane % 4 == 0) {
        part.p.lse[index] = log_sum_exp(reference[i], sum[i]);
      }
    }
  }

 private:
  // Of a thread's weights of a row and a tile: all fit into T, and their products with values below 2^80 into floats.
  static constexpr float kMaxWeight = dtype_of<T> == DType::bf16 ? 0x1p40f : 0x1p14f;

  // Also if it is no number.
  __device__ __forceinline__ bool needs_rescale(int row) const {
    return !(tile_sums[row][0] + tile_sums[row][1] <= kMaxWeight);
  }

  // Of all of a row's columns, which four lanes have.
  __device__ __forceinline__ void find_row_max(float (&maxima)[2]) const {
    // Several numbers of each row at a time: one after the other would wait for the one before.
    constexpr int kAtOnce = 4;
    float new_max[2][kAtOnce];
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float& row_max = new_max[row][j % kAtOnce];
        const float here = fmaxf(scores[4 * j + 2 * row], scores[4 * j + 2 * row + 1]);
        row_max = j < kAtOnce ? here : fmaxf(row_max, here);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      maxima[row] =
          fmaxf(fmaxf(new_max[row][0], new_max[row][1]), fmaxf(new_max[row][2], new_max[row][3]));
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        maxima[row] = fmaxf(maxima[row], __shfl_xor_sync(~0u, maxima[row], lanes));
      }
    }
  }

  // A row's results, one of two: this thread's columns of each 8.
  __device__ __forceinline__ void write_floats(float* to, int i, float factor) const {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) =
          make_float2(out[4 * j + 2 * i] * factor, out[4 * j + 2 * i + 1] * factor);
    }
  }

  // Of 32 columns a thread has 4 words, of each 8 columns one; the four threads of a row exchange them so that each
  // has 8 columns that follow each other.
  __device__ __forceinline__ void write_rounded(T* to, int i, float factor, bool exists,
                                                int lane_in_row) const {
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      unsigned word[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        word[k] = pack(out[4 * (j + k) + 2 * i] * factor, out[4 * (j + k) + 2 * i + 1] * factor);
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        const bool upper = (lane_in_row & step) != 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k & step) continue;
          const unsigned got = __shfl_xor_sync(~0u, upper ? word[k] : word[k + step], step);
          (upper ? word[k] : word[k + step]) = got;
        }
      }
      if (exists) {
        *reinterpret_cast<uint4*>(to + (j + lane_in_row) * 8) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }

  __device__ __forceinline__ static unsigned pack(float low, float high) {
    unsigned word;
    if constexpr (dtype_of<T> == DType::bf16) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    }
    return word;
  }
};

template <int kRegisters>
__device__ __forceinline__ void raise_register_limit() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_register_limit() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The tiles of the tokens [0, count) of a part, of which each row sees the first so many.
template <typename Part>
struct PrefixTiles {
  const Part& part;
  const Boxes& boxes;
  int tokens;
  int stage = 0;  // of the first tile that is worked on

  __device__ __forceinline__ int count() const { return count_tiles(tokens); }
  // The first token of the i-th tile that is worked on.
  __device__ __forceinline__ int first(int i) const { return (count() - 1 - i) * kTokens; }

  // What a thread must know to mask its scores, of rows `row` and row + 8 of a group that begins at group_row.
  struct Mask {
    int visible[2], min_visible;
    __device__ __forceinline__ Mask(const PrefixTiles& tiles, int group_row, int row)
        : visible{tiles.part.visible(row), tiles.part.visible(row + 8)},
          min_visible(tiles.part.visible(group_row)) {}
  };
  template <typename Rows>
  __device__ __forceinline__ void mask(const Mask& mask, int i, Rows& rows, int lane) const {
    if (first(i) + kTokens <= mask.min_visible) return;
    const int within[2] = {mask.visible[0] - first(i), mask.visible[1] - first(i)};
    rows.mask(within, lane);
  }

  // Keys or values were waited for.
  __device__ __forceinline__ void arrived() const {}
  // What no copy wrote of the values of the first tile worked on, which are there, is made zero.
  template <int D>
  __device__ __forceinline__ void zero_missing_values(const Shared<D>& shared, int thread) const {
    const int count = boxes.filled_by(min(kTokens, tokens - first(0)));
    const int filled = min(count * boxes.tokens, part.tokens - first(0));
    if (filled >= kTokens) return;
    clear_rows<D>(shared.values(stage), filled, thread);
    fence_shared_writes();
    sync_threads(kAllConsumers, kConsumers * kGroupThreads);
  }
};

// A consumer warpgroup, which works on one piece after the other: some packed rows with the tiles of tokens
// that they see.
template <typename T, int D>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Shared<D>& shared, int group, int thread)
      : shared_(shared), group_(group), thread_(thread) {
    if (group == 1) arrive_at(kFirstOrder, kBoth);  // the first turn is group 0's
  }

  // Tiles of the pieces before.
  __device__ __forceinline__ int done() const { return done_; }

  // The warpgroup copies the queries of a piece whose rows begin at block_row.
  __device__ __forceinline__ void copy_own_queries(const AttentionRows<T>& part,
                                                   int block_row) const {
    sync_threads(kFirstGroup + group_, kGroupThreads);  // products with those before are done
    copy_queries<T, D>(part, shared_.queries(), group_ * kGroupRows,
                       block_row + group_ * kGroupRows, thread_);
    fence_shared_writes();
    sync_threads(kFirstGroup + group_, kGroupThreads);
  }

  // Of a piece whose queries are there; queries_done() is called when they are needed no more. Tiles: as PrefixTiles.
  template <typename Tiles, typename QueriesDone>
  __device__ __forceinline__ void attend(const AttentionRows<T>& part, const Tiles& tiles,
                                         int block_row, const QueriesDone& queries_done) {
    const int group_row = block_row + group_ * kGroupRows, row = group_row + thread_ / 32 * 16;
    const int count = tiles.count();
    const unsigned queries = shared_.queries() + group_ * kGroupRows * kRowBytes;
    Rows<T, D> rows;
#pragma unroll
    for (float& value : rows.out) value = 0;
    const float scale = part.p.scale * kLog2E;
    const typename Tiles::Mask mask(tiles, group_row, row + lane() / 4);
    const auto wait_for = [&](const Barrier& full, const PipelineState& state) {
      full.wait(state.parity);
      tiles.arrived();
    };
    const int own_order = kFirstOrder + group_, other_order = kFirstOrder + 1 - group_;

    if (count > 0) {
      const PipelineState state(done_);
      wait_for(shared_.keys_full(state.stage), state);
      rows.multiply_keys(queries, shared_.keys(state.stage));
      wgmma_wait<0>();
      hold(rows.scores);
      release(shared_.keys_empty(state.stage));
      if (count == 1) queries_done();
      tiles.mask(mask, 0, rows, lane());
      rows.rescale_and_exponentiate(scale);
      rows.pack_weights();
      rows.add_row_sums();
      wait_for(shared_.values_full(state.stage), state);
      tiles.template zero_missing_values<D>(shared_, group_ * kGroupThreads + thread_);
    }
    for (int i = 1; i < count; ++i) {
      const PipelineState state(done_ + i), before(done_ + i - 1);
      wait_for(shared_.keys_full(state.stage), state);
      // The warpgroups take turns in enqueueing products.
      sync_threads(own_order, kBoth);
      rows.multiply_keys(queries, shared_.keys(state.stage));
      rows.multiply_values(shared_.values(before.stage), i == 1);
      arrive_at(other_order, kBoth);
      wgmma_wait<1>();
      hold(rows.scores);
      tiles.mask(mask, i, rows, lane());
      rows.template exponentiate<0, kOverlapped>(scale, rows.reference);
      // By now the products with the weights before are about done. To wait for a barrier is a loop, which the
      // assembler moves neither weights nor the next wait across: so taking weights and the products overlap.
      wait_for(shared_.values_full(state.stage), state);
      wgmma_wait<0>();
      hold(rows.out);
      release(shared_.values_empty(before.stage));
      rows.template exponentiate<kOverlapped, kTokens / 8>(scale, rows.reference);
      rows.pack_weights();
      if (any_of_threads(kFirstGroup + group_, kGroupThreads, rows.needs_rescale())) {
        rows.multiply_keys(queries, shared_.keys(state.stage));  // their scores are gone
        wgmma_wait<0>();
        hold(rows.scores);
        tiles.mask(mask, i, rows, lane());
        rows.rescale_and_exponentiate(scale);
        rows.pack_weights();
      }
      rows.add_row_sums();
      release(shared_.keys_empty(state.stage));
      if (i == count - 1) queries_done();  // the next ones come under the last products
    }
    if (count == 0) queries_done();
    if (count > 0) {
      const PipelineState last(done_ + count - 1);
      rows.multiply_values(shared_.values(last.stage), count == 1);
      wgmma_wait<0>();
      hold(rows.out);
      release(shared_.values_empty(last.stage));
    }
    done_ += count;
    rows.write(part, row, lane());
  }

  // Of what the warps of all consumers have read.
  __device__ __forceinline__ void release(const Barrier& empty) const {
    __syncwarp();
    if (lane() == 0) empty.arrive();
  }

 private:
  static constexpr int kOverlapped =
      8;  // pieces of 8 columns whose weights are taken under the products before
  static constexpr int kBoth = kConsumers * kGroupThreads;

  __device__ __forceinline__ int lane() const {
    return thread_ % 32;
  }

  const Shared<D> shared_;
  const int group_, thread_;
  int done_ = 0;
};

// A consumer warpgroup that has one piece.
template <typename T, int D, typename Tiles>
__device__ __forceinline__ void consume(const AttentionRows<T>& part, const Shared<D>& shared,
                                        const Tiles& tiles, int block_row, int group, int thread) {
  Consumer<T, D> consumer(shared, group, thread);
  consumer.copy_own_queries(part, block_row);
  consumer.attend(part, tiles, block_row, [] {});
}

// What a block does that has one piece, whose rows are those from block_row on.
template <typename T, int D, typename Part>
__device__ __forceinline__ void attend(const Part& part, int block_row, const CUtensorMap& keys,
                                       const CUtensorMap& values, const Boxes& boxes,
                                       const void* memory) {
  const Shared<D> shared(memory);
  const int tokens = visible_tokens(part, min(block_row + kRows, part.packed_rows));
  if (threadIdx.x == 0) start_barriers(shared, 1, 1);
  __syncthreads();
  const int group = own_group();
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    lower_register_limit<40>();
    produce<T, D>(part, shared, {keys, values, keys, values}, boxes, tokens, 0, thread);
  } else {
    raise_register_limit<232>();
    consume<T, D>(part, shared, PrefixTiles<Part>{part, boxes, tokens}, block_row, group, thread);
  }
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
