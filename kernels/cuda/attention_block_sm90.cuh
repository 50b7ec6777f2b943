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

// The tiles of the tokens [0, count) of a part, of which each row sees the first so many.
template <typename Part>
struct PrefixTiles {
  const Part& part;
  const Boxes& boxes;
  int tokens;

  __device__ __forceinline__ int count() const { return (tokens + kTokens - 1) / kTokens; }
  // The first token of the i-th tile that is worked on.
  __device__ __forceinline__ int first(int i) const { return (count() - 1 - i) * kTokens; }

  // What a thread must know to mask its scores, of rows `row` and row + 8 of a group that begins at group_row.
  struct Mask {
    int visible[2], least;
    __device__ __forceinline__ Mask(const PrefixTiles& tiles, int group_row, int row)
        : visible{tiles.part.visible(row), tiles.part.visible(row + 8)},
          least(tiles.part.visible(group_row)) {}
  };
  template <typename Rows>
  __device__ __forceinline__ void mask(const Mask& mask, int i, Rows& rows, int lane) const {
    if (first(i) + kTokens <= mask.least) return;
    const int within[2] = {mask.visible[0] - first(i), mask.visible[1] - first(i)};
    rows.mask(within, lane);
  }

  // Keys or values were waited for.
  __device__ __forceinline__ void arrived() const {}
  // What no copy wrote of the first tile worked on is made zero.
  template <int D>
  __device__ __forceinline__ void fill_up(const Shared<D>& shared, int thread) const {
    const int count = (min(kTokens, tokens - first(0)) + boxes.tokens - 1) / boxes.tokens;
    const int filled = min(count * boxes.tokens, part.tokens - first(0));
    if (filled == kTokens) return;
    shared.values_full(0).wait(0);
    clear_rows<D>(shared.values(0), filled, thread);
    fence_shared_writes();
    sync_threads(kAllConsumers, kConsumers * kGroupThreads);
  }
};

// A consumer warpgroup. Tiles: as PrefixTiles.
template <typename T, int D, typename Tiles>
__device__ __forceinline__ void consume(const AttentionRows<T>& part, const Shared<D>& shared,
                                        const Tiles& tiles, int block_row, int group, int thread) {
  const int lane = thread % 32;
  const int group_row = block_row + group * kGroupRows, row = group_row + thread / 32 * 16;
  const int count = tiles.count();
  const unsigned queries = shared.queries() + group * kGroupRows * kRowBytes;
  copy_queries<T, D>(part, shared.queries(), group * kGroupRows, group_row, thread);
  fence_shared_writes();
  sync_threads(kFirstGroup + group, kGroupThreads);

  Rows<T, D> rows;
#pragma unroll
  for (float& value : rows.out) value = 0;
  const float scale = part.p.scale * kLog2E;
  const typename Tiles::Mask mask(tiles, group_row, row + lane / 4);
  const auto weigh = [&](int i) {
    tiles.mask(mask, i, rows, lane);
    rows.weigh(scale);
  };
  const auto wait_for = [&](const Barrier& full, const Turn& turn) {
    full.wait(turn.parity);
    tiles.arrived();
  };
  const auto free_stage = [&](const Barrier& empty) {
    __syncwarp();
    if (lane == 0) empty.arrive();
  };
  // The warpgroups take turns in enqueueing products.
  const int own_turn = kFirstTurn + group, other_turn = kFirstTurn + 1 - group;
  constexpr int kBoth = kConsumers * kGroupThreads;

  if (count > 0) {
    wait_for(shared.keys_full(0), Turn(0));
    rows.multiply_keys(queries, shared.keys(0));
    wgmma_wait<0>();
    hold(rows.scores);
    free_stage(shared.keys_empty(0));
    weigh(0);
    rows.pack_weights();
    tiles.template fill_up<D>(shared, group * kGroupThreads + thread);
    if (group == 1) arrive_at(other_turn, kBoth);  // the first turn
  }
  for (int i = 1; i < count; ++i) {
    const Turn turn(i), before(i - 1);
    wait_for(shared.keys_full(turn.stage), turn);
    sync_threads(own_turn, kBoth);
    rows.multiply_keys(queries, shared.keys(turn.stage));
    wait_for(shared.values_full(before.stage), before);
    rows.multiply_values(shared.values(before.stage), i == 1);
    arrive_at(other_turn, kBoth);
    wgmma_wait<1>();
    hold(rows.scores);
    free_stage(shared.keys_empty(turn.stage));
    weigh(i);
    wgmma_wait<0>();
    hold(rows.out);
    free_stage(shared.values_empty(before.stage));
    rows.fade_out();
    rows.pack_weights();
  }
  if (count > 0) {
    const Turn last(count - 1);
    wait_for(shared.values_full(last.stage), last);
    rows.multiply_values(shared.values(last.stage), count == 1);
    wgmma_wait<0>();
    hold(rows.out);
  }
  rows.write(part, row, lane);
}

// By one thread, before all others begin: so many arrivals announce a tile of keys, or one of values.
template <int D>
__device__ __forceinline__ void start_barriers(const Shared<D>& shared, int keys, int values) {
  for (int stage = 0; stage < kStages; ++stage) {
    shared.keys_full(stage).init(keys);
    shared.values_full(stage).init(values);
    shared.keys_empty(stage).init(kConsumers * kGroupThreads / 32);
    shared.values_empty(stage).init(kConsumers * kGroupThreads / 32);
  }
  fence_barrier_init();
}

// What a block does whose rows are those from block_row on.
template <typename T, int D, typename Part>
__device__ __forceinline__ void attend(const Part& part, int block_row, const CUtensorMap& keys,
                                       const CUtensorMap& values, const Boxes& boxes,
                                       const void* memory) {
  const Shared<D> shared(memory);
  const int tokens = max(0, part.visible(min(block_row + kRows, part.packed_rows) - 1));
  if (threadIdx.x == 0) start_barriers(shared, 1, 1);
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    fewer_registers<24>();
    if (thread < 32) produce<T, D>(part, shared, keys, values, boxes, tokens, thread);
  } else {
    more_registers<240>();
    consume<T, D>(part, shared, PrefixTiles<Part>{part, boxes, tokens}, block_row, group, thread);
  }
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
