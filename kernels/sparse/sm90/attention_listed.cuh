// Attention on Hopper to tokens that lie anywhere: ranges and single columns. A block has 128 rows of a head
// (attention_block_sm90.cuh); its listed tokens have numbers, first those of the ranges, then the columns, and tile i
// is of the numbers [128 i, 128 i + 128). A producer warpgroup copies them token by token, a thread finds
// one token of each tile. Which of a tile's tokens come after a row the consumers see from their
// positions, which lie beside the tile; only tiles that have tokens after the block's first row are masked.
#pragma once

#include "kernels/attention/sm80/attention_lists.cuh"
#include "kernels/attention/sm90/attention_block.cuh"
#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda::sm90 {

// Keys of a tile are given back before its scores are masked, so positions stay for two rounds of stages. There is
// room for 16 bits each: how far a position lies behind the block's first row is all that masks need.
inline constexpr int kPositionSlots = 2 * kStages;
inline constexpr int kPositionBytes = kTokens * 2, kNewestBytes = kProducerWarps * 4;
inline constexpr int kFarBehind = 0x7fff;
static_assert(kRows <= kFarBehind && kNewestBytes == 16);
template <int D>
inline constexpr int kListedSharedBytes = kSharedBytes<D> +
                                          kPositionSlots*(kPositionBytes + kNewestBytes);
inline constexpr int kMostSharedBytes = 227 << 10;  // of a block, on Hopper
static_assert(kListedSharedBytes<128> <= kMostSharedBytes);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void store_word(unsigned to, int word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void store_half(unsigned to, int half) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(static_cast<unsigned short>(half))
               : "memory");
}
__device__ __forceinline__ void load_halves(unsigned from, int (&half)[2]) {
  unsigned short value[2];
  asm volatile("ld.shared.v2.u16 {%0, %1}, [%2];"
               : "=h"(value[0]), "=h"(value[1])
               : "r"(from)
               : "memory");
  half[0] = value[0], half[1] = value[1];
}
__device__ __forceinline__ void load_words(unsigned from, int (&word)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(from)
               : "memory");
}

// The listed tokens of a block's rows.
template <typename T>
struct ListedTokens : AttentionRows<T> {
  ListedPart<T> ranges, columns;
  int first_position;  // of the first row

  // All lanes of a warp call it together.
  __device__ __forceinline__ ListedTokens(const AttentionRows<T>& rows, const TokenList& ranges,
                                          const TokenList& columns, int first_position)
      : AttentionRows<T>(rows),
        ranges(rows, ranges, first_position + 1, first_position + rows.packed_rows),
        columns(rows, columns, first_position + 1, first_position + rows.packed_rows),
        first_position(first_position) {}

  __device__ __forceinline__ int tokens() const { return ranges.tokens + columns.tokens; }
  __device__ __forceinline__ int tiles() const { return (tokens() + kTokens - 1) / kTokens; }
  // The position of the token with a number; one after all rows beyond the last number.
  __device__ __forceinline__ int position(int number) const {
    if (number < ranges.tokens) return ranges.token(number);
    return number < tokens() ? columns.token(number - ranges.tokens) : 0x7fffffff;
  }
  // And where it lies.
  __device__ __forceinline__ long long place_at(int number, int position) const {
    return number < tokens() ? this->place_of(position) : 0;
  }
};

// Positions of a tile's tokens, as rows of the block that come no later, and of the last one that each producer
// warp found.
template <int D>
struct Positions {
  unsigned base;

  __device__ __forceinline__ explicit Positions(const Shared<D>& shared)
      : base(shared.barrier(0).address + kBarrierBytes) {}
  __device__ __forceinline__ unsigned of_tile(int i) const {
    return base + i % kPositionSlots * kPositionBytes;
  }
  __device__ __forceinline__ unsigned newest_of(int i) const {
    return base + kPositionSlots * kPositionBytes + i % kPositionSlots * kNewestBytes;
  }
};

// Of the 32 rows of a tile that a warp copies, from row `first` on, each lane knows the place of one in the cache.
// Rows from `count` of the tile on are made zero.
template <typename T, int D>
__device__ __forceinline__ void copy_places(const T* cache, long long place, unsigned tile,
                                            int first, int count, int lane) {
  constexpr int kChunks = D / 8, kAtOnce = 32 / kChunks;
  // Unknown to the compiler, or it would keep in registers what follows from it for every row.
  asm volatile("" : "+r"(lane));
  const int row = lane / kChunks, chunk = lane % kChunks;
  const unsigned to = chunk_of<kTokens>(tile, first + row, chunk);
#pragma unroll
  for (int i = 0; i < 32; i += kAtOnce) {
    const long long from = __shfl_sync(~0u, place, row + i);
    // i and row have no bit in common, so this is chunk_of row + i.
    copy_chunk((to ^ (i & 7) * 16) + i * kRowBytes, cache + from + chunk * 8,
               first + row + i < count);
  }
}

// The producer warpgroup.
template <typename T, int D>
__device__ __forceinline__ void produce_listed(const ListedTokens<T>& listed,
                                               const Shared<D>& shared, int thread) {
  const Positions<D> positions(shared);
  const int tiles = listed.tiles(), lane = thread % 32, warp = thread / 32;
  int next_position = listed.position(thread);
  long long next_place = listed.place_at(thread, next_position);
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    const int position = next_position;
    const long long place = next_place;
    const int count = listed.tokens() - i * kTokens;
    const int newest = __reduce_max_sync(~0u, position);
    const int behind = min(max(position - listed.first_position, 0), kFarBehind);
    const Turn turn(i);
    shared.keys_empty(turn.stage).wait(turn.parity ^ 1);
    store_half(positions.of_tile(i) + thread * 2, behind);
    if (lane == 0) store_word(positions.newest_of(i) + warp * 4, newest);
    copy_places<T, D>(listed.p.keys, place, shared.keys(turn.stage), warp * 32, count, lane);
    shared.keys_full(turn.stage).arrive_after_copies();
    __syncwarp();
    if (lane == 0) shared.keys_full(turn.stage).arrive();  // positions are there
    // Lists and table take long to answer; room for values comes later than room for keys.
    const int number = (i + 1) * kTokens + thread;
    next_position = listed.position(number);
    next_place = listed.place_at(number, next_position);
    shared.values_empty(turn.stage).wait(turn.parity ^ 1);
    copy_places<T, D>(listed.p.values, place, shared.values(turn.stage), warp * 32, count, lane);
    shared.values_full(turn.stage).arrive_after_copies();
  }
}

// As consumers see them (PrefixTiles): the first tile is the first one worked on.
template <typename T, int D>
struct ListedTiles {
  const ListedTokens<T>& listed;
  Positions<D> positions;

  __device__ __forceinline__ int count() const { return listed.tiles(); }

  struct Mask {
    int row, least;  // of the block; the position of the group's first row
    __device__ __forceinline__ Mask(const ListedTiles& tiles, int group_row, int row)
        : row(row), least(tiles.listed.first_position + group_row) {}
  };
  __device__ __forceinline__ void mask(const Mask& mask, int i, Rows<T, D>& rows, int lane) const {
    bool later = false;
    if (lane == 0) {  // it is lane 0 that gives the slot back, too
      int newest[kProducerWarps];
      load_words(positions.newest_of(i), newest);
      later = max(max(newest[0], newest[1]), max(newest[2], newest[3])) > mask.least;
    }
    if (!__any_sync(~0u, later)) return;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      int behind[2];
      load_halves(positions.of_tile(i) + (j * 8 + lane % 4 * 2) * 2, behind);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (behind[k % 2] > mask.row + k / 2 * 8) rows.scores[4 * j + k] = -INFINITY;
      }
    }
  }

  // The producer's copies are writes of its threads.
  __device__ __forceinline__ void arrived() const {
    fence_shared_writes();
  }
  template <int>
  __device__ __forceinline__ void fill_up(const Shared<D>&, int) const {}
};

// What a block does.
template <typename T, int D>
__device__ __forceinline__ void attend_listed(const ListedTokens<T>& listed, const void* memory) {
  const Shared<D> shared(memory);
  if (threadIdx.x == 0) start_barriers(shared, kGroupThreads + kProducerWarps, kGroupThreads);
  __syncthreads();
  const int group = own_group();
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    fewer_registers<72>();
    produce_listed<T, D>(listed, shared, thread);
  } else {
    more_registers<216>();
    consume<T, D>(listed, shared, ListedTiles<T, D>{listed, Positions<D>(shared)}, 0, group,
                  thread);
  }
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
