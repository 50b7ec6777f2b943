// Attention of many query rows per sequence on Hopper: a block has 128 packed rows of a sequence and a KV head,
// 64 per consumer warpgroup, whose tensor cores work on tiles of 128 tokens that a producer warp has
// copied in bulk. A warpgroup takes the weights of one tile while its tensor cores still add up the tile
// before; the two warpgroups take turns, so that one's weights are taken under the other's products.
//
// The last tile of tokens is the first to be worked on: it alone, and the few before it that a block's rows
// end in, need masks.
#pragma once

#include "kernels/cuda/attention_rows_sm90.cuh"
#include "kernels/cuda/attention_tiles_sm90.cuh"

namespace nvllm::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kRegisters>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barriers of some warps, by number; 0 is __syncthreads().
__device__ __forceinline__ void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
inline constexpr int kAllConsumers = 1;                      // the number of their barrier
inline constexpr int kFirstGroup = 2;                        // of each warpgroup alone
inline constexpr int kFirstTurn = kFirstGroup + kConsumers;  // its turn has come

// A consumer warpgroup.
template <typename T, int D, typename Part>
__device__ __forceinline__ void consume(const Part& part, const Shared<D>& shared,
                                        const Boxes& boxes, int block_row, int tokens, int group,
                                        int thread) {
  const int lane = thread % 32;
  const int group_row = block_row + group * kGroupRows, row = group_row + thread / 32 * 16;
  const int tiles = (tokens + kTokens - 1) / kTokens;
  const unsigned queries = shared.queries() + group * kGroupRows * kRowBytes;
  copy_queries<T, D>(part, shared.queries(), group * kGroupRows, group_row, thread);
  fence_shared_writes();
  sync_threads(kFirstGroup + group, kGroupThreads);

  Rows<T, D> rows;
#pragma unroll
  for (float& value : rows.out) value = 0;
  const float scale = part.p.scale * kLog2E;
  const int visible[2] = {part.visible(row + lane / 4), part.visible(row + lane / 4 + 8)};
  const int least = part.visible(group_row);
  const auto weigh = [&](int first) {
    if (first + kTokens > least) {
      const int within[2] = {visible[0] - first, visible[1] - first};
      rows.mask(within, lane);
    }
    rows.weigh(scale);
  };
  const auto free_stage = [&](const Barrier& empty) {
    __syncwarp();
    if (lane == 0) empty.arrive();
  };
  // The warpgroups take turns in enqueueing products.
  const int own_turn = kFirstTurn + group, other_turn = kFirstTurn + 1 - group;
  constexpr int kBoth = kConsumers * kGroupThreads;

  if (tiles > 0) {
    const int first = (tiles - 1) * kTokens;
    shared.keys_full(0).wait(0);
    rows.multiply_keys(queries, shared.keys(0));
    wgmma_wait<0>();
    hold(rows.scores);
    free_stage(shared.keys_empty(0));
    weigh(first);
    rows.pack_weights();
    const int count = (min(kTokens, tokens - first) + boxes.tokens - 1) / boxes.tokens;
    const int filled = min(count * boxes.tokens, part.tokens - first);
    if (filled < kTokens) {
      shared.values_full(0).wait(0);
      clear_rows<D>(shared.values(0), filled, group * kGroupThreads + thread);
      fence_shared_writes();
      sync_threads(kAllConsumers, kBoth);
    }
    if (group == 1) arrive_at(other_turn, kBoth);  // the first turn
  }
  for (int i = 1; i < tiles; ++i) {
    const Turn turn(i), before(i - 1);
    shared.keys_full(turn.stage).wait(turn.parity);
    sync_threads(own_turn, kBoth);
    rows.multiply_keys(queries, shared.keys(turn.stage));
    shared.values_full(before.stage).wait(before.parity);
    rows.multiply_values(shared.values(before.stage), i == 1);
    arrive_at(other_turn, kBoth);
    wgmma_wait<1>();
    hold(rows.scores);
    free_stage(shared.keys_empty(turn.stage));
    weigh((tiles - 1 - i) * kTokens);
    wgmma_wait<0>();
    hold(rows.out);
    free_stage(shared.values_empty(before.stage));
    rows.fade_out();
    rows.pack_weights();
  }
  if (tiles > 0) {
    const Turn last(tiles - 1);
    shared.values_full(last.stage).wait(last.parity);
    rows.multiply_values(shared.values(last.stage), tiles == 1);
    wgmma_wait<0>();
    hold(rows.out);
  }
  rows.write(part, row, lane);
}

// What a block does whose rows are those from block_row on.
template <typename T, int D, typename Part>
__device__ __forceinline__ void attend(const Part& part, int block_row, const CUtensorMap& keys,
                                       const CUtensorMap& values, const Boxes& boxes,
                                       const void* memory) {
  const Shared<D> shared(memory);
  const int tokens = max(0, part.visible(min(block_row + kRows, part.packed_rows) - 1));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.keys_full(stage).init(1);
      shared.values_full(stage).init(1);
      shared.keys_empty(stage).init(kConsumers * kGroupThreads / 32);
      shared.values_empty(stage).init(kConsumers * kGroupThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    fewer_registers<24>();
    if (thread < 32) produce<T, D>(part, shared, keys, values, boxes, tokens, thread);
  } else {
    more_registers<240>();
    consume<T, D>(part, shared, boxes, block_row, tokens, group, thread);
  }
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
