// Tiles of queries, keys and values in a block's shared memory, for attention on Hopper, and how they get there:
// a producer warpgroup copies the cache in bulk, tile by tile, while consumers work on the tiles before.
// See attention_block_sm90.cuh.
#pragma once

#include "kernels/attention/sm80/attention.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/common/sm90/sync.cuh"

namespace nvllm::kernels::cuda::sm90 {

inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
inline constexpr int kProducerWarps = kGroupThreads / 32;
inline constexpr int kGroupRows = 64;
inline constexpr int kRows = kConsumers * kGroupRows;
inline constexpr int kTokens = 128;  // of a tile
inline constexpr int kStages = 3;
inline constexpr int kHalf = 64;  // elements of a row of a tile in shared memory
inline constexpr int kRowBytes = kHalf * 2;
inline constexpr int kLeastBoxTokens = 8;  // the swizzle repeats after so many rows
inline constexpr int kBarrierBytes = 256;  // and what is told of a piece
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
  int block_size;     // without a table a block is a whole sequence
  bool runs = false;  // a tile is several blocks, one box where they follow one another

  // Warps of the producer that copy.
  __device__ __forceinline__ int warps() const {
    return bulk && tokens < kTokens ? kProducerWarps : 1;
  }
  // Boxes that so many tokens fill; a box's are a power of two.
  __device__ __forceinline__ int filled_by(int count) const {
    return (count + tokens - 1) >> (31 - __clz(tokens));
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The warpgroup of this thread. The compiler sees that a warp's lanes agree, and keeps what follows once for all.
__device__ __forceinline__ int own_group() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
}

// Numbers of barriers (sync_threads.cuh).
inline constexpr int kAllConsumers = 1;
inline constexpr int kFirstGroup = 2;                        // of each warpgroup alone
inline constexpr int kFirstTurn = kFirstGroup + kConsumers;  // its turn has come
inline constexpr int kAllProducers = kFirstTurn + kConsumers;

// The cache as boxes, and as runs of blocks that make a tile.
struct CacheMaps {
  const CUtensorMap& keys;
  const CUtensorMap& values;
  const CUtensorMap& key_runs;
  const CUtensorMap& value_runs;
};

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
  // The queries of a piece of work, and what the piece is.
  __device__ __forceinline__ Barrier queries_full() const { return barrier(4 * kStages); }
  __device__ __forceinline__ Barrier queries_empty() const { return barrier(4 * kStages + 1); }
  __device__ __forceinline__ unsigned piece() const { return barrier(4 * kStages + 2).address; }
};

// By one thread, before all others begin: so many arrivals announce a tile of keys, or one of values.
template <int D>
__device__ __forceinline__ void start_barriers(const Shared<D>& shared, int keys, int values) {
  constexpr int kWarps = kConsumers * kGroupThreads / 32;
  for (int stage = 0; stage < kStages; ++stage) {
    shared.keys_full(stage).init(keys);
    shared.values_full(stage).init(values);
    shared.keys_empty(stage).init(kWarps);
    shared.values_empty(stage).init(kWarps);
  }
  shared.queries_full().init(1);
  shared.queries_empty().init(kWarps);
  fence_barrier_init();
}

// The i-th tile that a block works on has this stage, and its barriers this parity.
struct Turn {
  int stage;
  unsigned parity;
  __device__ __forceinline__ explicit Turn(int i) : stage(i % kStages), parity(i / kStages & 1) {}
};

__device__ __forceinline__ int count_tiles(int tokens) {
  return (tokens + kTokens - 1) / kTokens;
}

// Tokens that the last of the first `packed_rows` rows sees, which is all that those before it see.
template <typename Part>
__device__ __forceinline__ int seen_by(const Part& part, int packed_rows) {
  return max(0, part.visible(packed_rows - 1));
}

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

// Where the boxes of a tile begin. Each warp of the producer knows all of them: a lane one, or the half of its rows'
// elements.
struct TileBoxes {
  int count;
  int block, within;  // of this lane's box
};

// Asks the table; the answer is waited for where it is used.
template <int D, typename Part>
__device__ __forceinline__ TileBoxes find_boxes(const Part& part, const Boxes& boxes, int tokens,
                                                int tile, int lane) {
  const int first = tile * kTokens;
  TileBoxes found;
  found.count = boxes.filled_by(min(kTokens, tokens - first));
  found.block = part.sequence;
  found.within = part.token(first) + min(lane / kHalves<D>, found.count - 1) * boxes.tokens;
  if (part.p.block_table != nullptr) {
    const int shift = part.p.block_shift;
    const int number = shift >= 0 ? found.within >> shift : found.within / boxes.block_size;
    found.within -= number * boxes.block_size;
    found.block =
        part.p.block_table[static_cast<long long>(part.sequence) * part.p.table_width + number];
  }
  return found;
}

// Whether they are blocks of the cache that follow one another and make a tile.
template <int D>
__device__ __forceinline__ bool are_run(const TileBoxes& found, const Boxes& boxes, int lane) {
  if (!boxes.runs || found.count * boxes.tokens != kTokens) return false;
  const int box = min(lane / kHalves<D>, found.count - 1);
  const int first = __shfl_sync(~0u, found.block, 0);
  return __all_sync(~0u, found.block == first + box && found.within == 0);
}

// The first `count` boxes to a tile of keys or values, once there is room. The lanes of a warp copy one after the
// other, so each warp does some; only one waits for room, as the others could miss that there was some.
template <int D>
__device__ __forceinline__ void copy_boxes(const CUtensorMap& tensor, const Boxes& boxes,
                                           const TileBoxes& found, int count, int kv_head,
                                           unsigned tile, const Barrier& full, const Barrier& empty,
                                           unsigned parity, int thread) {
  if (thread < 32) empty.wait(parity);
  if (thread == 0) full.arrive_and_expect(found.count * boxes.tokens * D * 2);
  boxes.warps() > 1 ? sync_threads(kAllProducers, kGroupThreads) : __syncwarp();
  const int lane = thread % 32, box = lane / kHalves<D>, half = lane % kHalves<D>;
  if (box >= count || box % kProducerWarps != thread / 32) return;
  const unsigned to = tile + half * kTokens * kRowBytes + box * boxes.tokens * kRowBytes;
  copy_box(to, tensor, half * kHalf, found.within, kv_head, found.block, full);
}

// The tiles of a piece, the last one first; `done` tiles of earlier pieces went before.
template <int D, typename Part>
__device__ __forceinline__ void produce_boxes(const Part& part, const Shared<D>& shared,
                                              const CacheMaps& maps, const Boxes& boxes, int tokens,
                                              int done, int thread) {
  const int lane = thread % 32;
  int tile = count_tiles(tokens) - 1;
  TileBoxes next = find_boxes<D>(part, boxes, tokens, tile, lane);
  for (; tile >= 0; --tile, ++done) {
    const TileBoxes found = next;
    if (tile > 0) next = find_boxes<D>(part, boxes, tokens, tile - 1, lane);
    const bool run = are_run<D>(found, boxes, lane);
    const int count = run ? 1 : found.count;
    const Turn turn(done);
    copy_boxes<D>(run ? maps.key_runs : maps.keys, boxes, found, count, part.kv_head,
                  shared.keys(turn.stage), shared.keys_full(turn.stage),
                  shared.keys_empty(turn.stage), turn.parity ^ 1, thread);
    copy_boxes<D>(run ? maps.value_runs : maps.values, boxes, found, count, part.kv_head,
                  shared.values(turn.stage), shared.values_full(turn.stage),
                  shared.values_empty(turn.stage), turn.parity ^ 1, thread);
  }
}

template <typename T, int D, typename Part>
__device__ __forceinline__ void copy_tokens(const Part& part, const T* cache, int first, int count,
                                            unsigned tile, const Barrier& full, int lane) {
  constexpr int kChunks = D / 8;
#pragma unroll 1
  for (int at = lane; at < count * kChunks; at += 32) {
    const int token = at / kChunks, chunk = at % kChunks;
    store_chunk<kTokens>(tile, token, chunk,
                         load_vector(cache + part.place(first + token) + chunk * 8).word);
  }
  fence_shared_writes();
  __syncwarp();
  if (lane == 0) full.arrive();
}

// The same, token by token.
template <typename T, int D, typename Part>
__device__ __forceinline__ void produce_tokens(const Part& part, const Shared<D>& shared,
                                               int tokens, int done, int lane) {
#pragma unroll 1
  for (int tile = count_tiles(tokens) - 1; tile >= 0; --tile, ++done) {
    const int first = tile * kTokens, count = min(kTokens, tokens - first);
    const Turn turn(done);
#pragma unroll 1
    for (int values = 0; values < 2; ++values) {
      const Barrier empty = shared.barrier(values * 2 * kStages + kStages + turn.stage);
      const Barrier full = shared.barrier(values * 2 * kStages + turn.stage);
      empty.wait(turn.parity ^ 1);
      copy_tokens<T, D>(part, values == 0 ? part.p.keys : part.p.values, first, count,
                        shared.keys(values * kStages + turn.stage), full, lane);
    }
  }
}

// The producer warpgroup.
template <typename T, int D, typename Part>
__device__ __forceinline__ void produce(const Part& part, const Shared<D>& shared,
                                        const CacheMaps& maps, const Boxes& boxes, int tokens,
                                        int done, int thread) {
  if (tokens == 0 || thread >= boxes.warps() * 32) return;
  if (boxes.bulk) {
    produce_boxes<D>(part, shared, maps, boxes, tokens, done, thread);
  } else {
    produce_tokens<T, D>(part, shared, tokens, done, thread);
  }
}

// A warpgroup copies its 64 packed rows; zeros for those that do not exist.
template <typename T, int D>
__device__ __forceinline__ void copy_queries(const AttentionRows<T>& part, unsigned queries,
                                             int first, int first_packed, int thread) {
  constexpr int kChunks = D / 8, kRowsAtOnce = kGroupThreads / kChunks;
  static_assert(kRowsAtOnce % 8 == 0);  // a thread's chunks have one place in their rows
  const int row = thread / kChunks, chunk = thread % kChunks;
#pragma unroll
  for (int i = 0; i < kGroupRows; i += kRowsAtOnce) {
    Vector<T> vector{};
    if (first_packed + row + i < part.packed_rows) {
      vector = load_vector(part.query(first_packed + row + i) + chunk * 8);
    }
    store_chunk<kRows>(queries + i * kRowBytes, first + row, chunk, vector.word);
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
