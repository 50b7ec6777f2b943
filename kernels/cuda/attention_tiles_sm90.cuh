// Tiles of queries, keys and values in a block's shared memory, for attention on Hopper, and how they get there:
// a producer warp copies the cache in bulk, tile by tile, while consumers work on the tiles before.
// See attention_prefill_sm90.cu.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/bulk_copy.cuh"

namespace nvllm::kernels::cuda::sm90 {

inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
inline constexpr int kGroupRows = 64;
inline constexpr int kRows = kConsumers * kGroupRows;
inline constexpr int kTokens = 128;  // of a tile
inline constexpr int kStages = 2;
inline constexpr int kHalf = 64;  // elements of a row of a tile in shared memory
inline constexpr int kRowBytes = kHalf * 2;
inline constexpr int kLeastBoxTokens = 8;  // the swizzle repeats after so many rows
inline constexpr int kBarrierBytes = 128;
inline constexpr int kAlignment = 1024;

template <int D>
inline constexpr int kHalves = D / kHalf;
template <int D>
inline constexpr int kQueryBytes = kRows* D * 2;
template <int D>
inline constexpr int kTileBytes = kTokens* D * 2;
template <int D>
inline constexpr int kSharedBytes =
    kQueryBytes<D> + 2 * kStages* kTileBytes<D> + kBarrierBytes + kAlignment;

// How the cache is copied: in bulk, as boxes of so many tokens of one head and block; or token by token,
// where blocks are no multiple of a box.
struct Boxes {
  bool bulk;
  int tokens;
  int block_size;  // without a table a block is a whole sequence
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where a block has what.
template <int D>
struct Shared {
  unsigned base;

  __device__ __forceinline__ explicit Shared(const void* memory)
      : base((shared_address(memory) + kAlignment - 1) & ~(kAlignment - 1)) {}
  __device__ __forceinline__ unsigned queries() const { return base; }
  __device__ __forceinline__ unsigned keys(int stage) const {
    return base + kQueryBytes<D> + stage * kTileBytes<D>;
  }
  __device__ __forceinline__ unsigned values(int stage) const { return keys(kStages + stage); }
  __device__ __forceinline__ Barrier barrier(int number) const {
    return {keys(2 * kStages) + number * 8};
  }
  __device__ __forceinline__ Barrier keys_full(int stage) const { return barrier(stage); }
  __device__ __forceinline__ Barrier keys_empty(int stage) const {
    return barrier(kStages + stage);
  }
  __device__ __forceinline__ Barrier values_full(int stage) const {
    return barrier(2 * kStages + stage);
  }
  __device__ __forceinline__ Barrier values_empty(int stage) const {
    return barrier(3 * kStages + stage);
  }
};

// The i-th tile that a block works on has this stage, and its barriers this parity.
struct Turn {
  int stage;
  unsigned parity;
  __device__ __forceinline__ explicit Turn(int i) : stage(i % kStages), parity(i / kStages & 1) {}
};

// Where a chunk of 8 elements of a row of a tile of kTileRows rows lies.
template <int kTileRows>
__device__ __forceinline__ unsigned chunk_of(unsigned tile, int row, int chunk) {
  return tile + chunk / 8 * kTileRows * kRowBytes + row * kRowBytes +
         ((chunk & 7) ^ (row & 7)) * 16;
}

template <int kTileRows>
__device__ __forceinline__ void store_chunk(unsigned tile, int row, int chunk,
                                            const unsigned (&word)[4]) {
  asm volatile(
      "st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(chunk_of<kTileRows>(tile, row, chunk)),
      "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
      : "memory");
}

// A tile's boxes in bulk, from token `first` on: a lane for each box and half of its rows' elements.
template <int D, typename Part>
__device__ __forceinline__ void copy_boxes(const Part& part, const CUtensorMap& tensor,
                                           const Boxes& boxes, int first, int count, unsigned tile,
                                           const Barrier& full, int lane) {
  if (lane == 0) full.arrive_and_expect(count * boxes.tokens * D * 2);
  __syncwarp();
  const int box = lane / kHalves<D>, half = lane % kHalves<D>;
  if (box >= count) return;
  int block = part.sequence, within = first + box * boxes.tokens;
  if (const int* table = part.p.block_table) {
    block = table[static_cast<long long>(part.sequence) * part.p.table_width +
                  within / boxes.block_size];
    within %= boxes.block_size;
  }
  const unsigned to = tile + half * kTokens * kRowBytes + box * boxes.tokens * kRowBytes;
  copy_box(to, tensor, half * kHalf, within, part.kv_head, block, full);
}

template <typename T, int D, typename Part>
__device__ __forceinline__ void copy_tokens(const Part& part, const T* cache, int first, int count,
                                            unsigned tile, const Barrier& full, int lane) {
  constexpr int kChunks = D / 8;
  for (int at = lane; at < count * kChunks; at += 32) {
    const int token = at / kChunks, chunk = at % kChunks;
    store_chunk<kTokens>(tile, token, chunk,
                         load_vector(cache + part.place(first + token) + chunk * 8).word);
  }
  fence_shared_writes();
  __syncwarp();
  if (lane == 0) full.arrive();
}

// The producer warp.
template <typename T, int D, typename Part>
__device__ __forceinline__ void produce(const Part& part, const Shared<D>& shared,
                                        const CUtensorMap& keys, const CUtensorMap& values,
                                        const Boxes& boxes, int tokens, int lane) {
  const int tiles = (tokens + kTokens - 1) / kTokens;
  for (int i = 0; i < tiles; ++i) {
    const int first = (tiles - 1 - i) * kTokens;
    const int count = (min(kTokens, tokens - first) + boxes.tokens - 1) / boxes.tokens;
    const int token = part.token(first);  // asked for before there is room
    const Turn turn(i);
    const auto copy = [&](const CUtensorMap& tensor, const T* cache, unsigned tile,
                          const Barrier& full) {
      if (boxes.bulk) {
        copy_boxes<D>(part, tensor, boxes, token, count, tile, full, lane);
      } else {
        copy_tokens<T, D>(part, cache, first, count, tile, full, lane);
      }
    };
    shared.keys_empty(turn.stage).wait(turn.parity ^ 1);
    copy(keys, part.p.keys, shared.keys(turn.stage), shared.keys_full(turn.stage));
    shared.values_empty(turn.stage).wait(turn.parity ^ 1);
    copy(values, part.p.values, shared.values(turn.stage), shared.values_full(turn.stage));
  }
}

// A warpgroup copies its 64 packed rows; zeros for those that do not exist.
template <typename T, int D>
__device__ __forceinline__ void copy_queries(const AttentionRows<T>& part, unsigned queries,
                                             int first, int first_packed, int thread) {
  constexpr int kChunks = D / 8;
#pragma unroll
  for (int i = 0; i < kGroupRows * kChunks / kGroupThreads; ++i) {
    const int at = i * kGroupThreads + thread;
    const int row = at / kChunks, chunk = at % kChunks;
    Vector<T> vector{};
    if (first_packed + row < part.packed_rows) {
      vector = load_vector(part.query(first_packed + row) + chunk * 8);
    }
    store_chunk<kRows>(queries, first + row, chunk, vector.word);
  }
}

// All consumers make rows [from, kTokens) of a tile zero: what lies there may be anything, and a weight of
// zero times NaN is no zero.
template <int D>
__device__ __forceinline__ void clear_rows(unsigned tile, int from, int thread) {
  constexpr int kChunks = D / 8;
  for (int at = from * kChunks + thread; at < kTokens * kChunks; at += kConsumers * kGroupThreads) {
    store_chunk<kTokens>(tile, at / kChunks, at % kChunks, {0, 0, 0, 0});
  }
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
