// The shared-memory pipeline of attention on Hopper and its producer warpgroup, which fills it, and
// on the host the tensor maps that the producer copies with.
//
// A block holds the queries of 128 packed rows and a ring of kStages KV tiles of kTokens tokens.
// For each stage, keys and values have a "full" mbarrier, at which copies arrive, and an "empty"
// one, at which consumers release the tile. The producer copies the cache with TMA, tile by tile,
// while the consumers (consumer.cuh) compute on the previous tiles; if cache blocks are not a
// multiple of a TMA box, it copies token by token. A cache of E4m3 passes through registers, where
// it becomes float16.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <type_traits>

#include "device/cuda/stream.h"
#include "kernels/attention/sm80/attention_params.cuh"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"

namespace nvllm::kernels::cuda::sm90 {

inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
inline constexpr int kProducerWarps = kGroupThreads / 32;
inline constexpr int kGroupRows = 64;
inline constexpr int kRows = kConsumers * kGroupRows;
inline constexpr int kHalf = 64;  // elements of a row of a tile in shared memory
inline constexpr int kRowBytes = kHalf * 2;
inline constexpr int kMinBoxTokens = 8;    // the swizzle pattern repeats after 8 rows
inline constexpr int kBarrierBytes = 256;  // and the published work tile
inline constexpr int kAlignment = 1024;

// The type of tiles in shared memory, and of what is multiplied.
template <typename T>
using TileType = std::conditional_t<kIsE4m3<T>, F16, T>;
// Tokens of a KV tile, and tiles of a ring: as many as shared memory has room for. E4m3 tiles have
// a ring of their own, of keys and values in turn, on their way to float16.
template <int D>
inline constexpr int kTokens = D <= 128 ? 128 : 64;
template <typename T, int D>
inline constexpr int kStages = D == 64 || (D == 128 && !kIsE4m3<T>) ? 3 : 2;
template <typename T, int D>
inline constexpr int kE4m3Stages = !kIsE4m3<T> ? 0
                                   : D <= 128  ? 4
                                               : 2;
template <int D>
inline constexpr int kHalves = D / kHalf;
template <int D>
inline constexpr int kQueryBytes = kRows* D * 2;
template <int D>
inline constexpr int kTileBytes = kTokens<D>* D * 2;
template <int D>
inline constexpr int kE4m3TileBytes = kTokens<D>* D;
inline constexpr int kFactorBytes = kRows * 4;  // of queries for a cache of E4m3
template <typename T, int D>
inline constexpr int kSharedBytes = kQueryBytes<D> + 2 * kStages<T, D>* kTileBytes<D> +
                                    kE4m3Stages<T, D>* kE4m3TileBytes<D> + kBarrierBytes +
                                    (kIsE4m3<T> ? kFactorBytes : 0) + kAlignment;

// How the cache is copied: as TMA boxes of `tokens` tokens of one head and cache block; or token by
// token, if cache blocks are not a multiple of a box.
struct Boxes {
  bool bulk;
  int tokens;
  int block_size;     // without a block table, a block is a whole sequence
  bool runs = false;  // a tile is several cache blocks: one box if consecutive

  // The number of producer warps that copy.
  template <int D>
  __device__ __forceinline__ int warps() const {
    return bulk && tokens < kTokens<D> ? kProducerWarps : 1;
  }
  // How many boxes `count` tokens fill. A box's number of tokens is a power of two.
  __device__ __forceinline__ int filled_by(int count) const {
    return (count + tokens - 1) >> (31 - __clz(tokens));
  }
  // How many boxes `count` tokens fill completely.
  __device__ __forceinline__ int whole_in(int count) const { return count >> (31 - __clz(tokens)); }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The warpgroup of this thread. The shuffle shows the compiler that it is uniform in a warp.
__device__ __forceinline__ int own_group() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
}

// Numbers of named barriers (kernels/common/sm90/sync.cuh).
inline constexpr int kAllConsumers = 1;
inline constexpr int kFirstGroup = 2;                         // of each warpgroup alone
inline constexpr int kFirstOrder = kFirstGroup + kConsumers;  // orders the warpgroups (ping-pong)
inline constexpr int kAllProducers = kFirstOrder + kConsumers;

// Tensor maps of the cache: boxes, and runs of consecutive cache blocks that make up a tile.
struct CacheMaps {
  const CUtensorMap& keys;
  const CUtensorMap& values;
  const CUtensorMap& key_runs;
  const CUtensorMap& value_runs;
};

// The layout of a block's shared memory.
template <typename T, int D>
struct Shared {
  unsigned base;

  __device__ __forceinline__ explicit Shared(const void* memory)
      : base((shared_address(memory) + kAlignment - 1) & ~(kAlignment - 1)) {}
  __device__ __forceinline__ unsigned queries() const { return base; }
  __device__ __forceinline__ unsigned keys(int stage) const {
    return base + kQueryBytes<D> + stage * kTileBytes<D>;
  }
  __device__ __forceinline__ unsigned values(int stage) const {
    return keys(kStages<T, D> + stage);
  }
  __device__ __forceinline__ unsigned e4m3_tile(int stage) const {
    return keys(2 * kStages<T, D>) + stage * kE4m3TileBytes<D>;
  }
  __device__ __forceinline__ Barrier barrier(int number) const {
    return {e4m3_tile(kE4m3Stages<T, D>) + number * 8};
  }
  __device__ __forceinline__ Barrier keys_full(int stage) const { return barrier(stage); }
  __device__ __forceinline__ Barrier keys_empty(int stage) const {
    return barrier(kStages<T, D> + stage);
  }
  __device__ __forceinline__ Barrier values_full(int stage) const {
    return barrier(2 * kStages<T, D> + stage);
  }
  __device__ __forceinline__ Barrier values_empty(int stage) const {
    return barrier(3 * kStages<T, D> + stage);
  }
  // The queries of a work tile, and the published work tile itself (prefill_launch.cuh).
  __device__ __forceinline__ Barrier queries_full() const { return barrier(4 * kStages<T, D>); }
  __device__ __forceinline__ Barrier queries_empty() const {
    return barrier(4 * kStages<T, D> + 1);
  }
  __device__ __forceinline__ unsigned work_tile() const {
    return barrier(4 * kStages<T, D> + 2).address;
  }
  // QueryScale::inverse of a row, with a cache of E4m3.
  __device__ __forceinline__ unsigned query_factor(int row) const {
    return barrier(0).address + kBarrierBytes + row * 4;
  }
};

// The arrivals that announce a tile of produce().
template <typename T>
inline constexpr int kTileArrivals = kIsE4m3<T> ? kProducerWarps : 1;

// Initializes the barriers; called by one thread before all others start. `keys` and `values`: the
// arrivals that announce a tile.
template <typename T, int D>
__device__ __forceinline__ void start_barriers(const Shared<T, D>& shared, int keys, int values) {
  constexpr int kWarps = kConsumers * kGroupThreads / 32;
  for (int stage = 0; stage < kStages<T, D>; ++stage) {
    shared.keys_full(stage).init(keys);
    shared.values_full(stage).init(values);
    shared.keys_empty(stage).init(kWarps);
    shared.values_empty(stage).init(kWarps);
  }
  shared.queries_full().init(1);
  shared.queries_empty().init(kWarps);
  fence_barrier_init();
}

// The stage of the i-th tile that a block works on, and the parity of its barriers.
template <typename T, int D>
struct PipelineState {
  int stage;
  unsigned parity;
  __device__ __forceinline__ explicit PipelineState(int i)
      : stage(i % kStages<T, D>), parity(i / kStages<T, D> & 1) {}
};

template <int D>
__device__ __forceinline__ int count_tiles(int tokens) {
  return (tokens + kTokens<D> - 1) / kTokens<D>;
}

// The number of tiles that overlap tokens [begin, end). Tiles begin at multiples of kTokens.
template <int D>
__device__ __forceinline__ int count_tiles(int begin, int end) {
  return count_tiles<D>(end) - begin / kTokens<D>;
}

// The number of tokens that the last of the first `packed_rows` rows attends to; earlier rows
// attend to no more.
template <typename Part>
__device__ __forceinline__ int visible_tokens(const Part& part, int packed_rows) {
  return max(0, part.visible(packed_rows - 1));
}

// The address of a chunk of 8 elements of a row, in a tile of kTileRows rows.
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

// The origins of a tile's boxes. Each producer warp knows all of them: a lane has one box, or the
// half of its rows' elements.
struct TileBoxes {
  int count;
  int skipped;        // with a window: leading boxes that no row attends to
  int block, within;  // of this lane's box
};

// Looks the boxes up in the block table. The loads complete where their results are used. Rows
// attend to tokens of [begin, end).
template <int D, typename Part>
__device__ __forceinline__ TileBoxes locate_boxes(const Part& part, const Boxes& boxes, int begin,
                                                  int end, int tile, int lane) {
  const int first = tile * kTokens<D>;
  TileBoxes found;
  found.count = boxes.filled_by(min(kTokens<D>, end - first));
  if constexpr (Part::kWindowed) found.skipped = boxes.whole_in(max(0, begin - first));
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

// Whether the boxes are consecutive blocks of the cache that make up a tile.
template <int D, bool kWindow>
__device__ __forceinline__ bool is_run(const TileBoxes& found, const Boxes& boxes, int lane) {
  if (!boxes.runs || found.count * boxes.tokens != kTokens<D>) return false;
  if (kWindow && found.skipped > 0) return false;
  const int box = min(lane / kHalves<D>, found.count - 1);
  const int first = __shfl_sync(~0u, found.block, 0);
  return __all_sync(~0u, found.block == first + box && found.within == 0);
}

// Copies the first `count` boxes but the skipped ones to a tile of keys or values, once the stage
// is empty. The lanes of a warp issue their copies one after the other, so each warp issues some.
// Only one warp waits for the empty barrier: the others could miss its phase.
template <int D, bool kWindow>
__device__ __forceinline__ void copy_boxes(const CUtensorMap& tensor, const Boxes& boxes,
                                           const TileBoxes& found, int count, int kv_head,
                                           unsigned tile, const Barrier& full, const Barrier& empty,
                                           unsigned parity, int thread) {
  if (thread < 32) empty.wait(parity);
  const int copied = kWindow ? found.count - found.skipped : found.count;
  if (thread == 0) full.arrive_and_expect(copied * boxes.tokens * D * 2);
  boxes.warps<D>() > 1 ? sync_threads(kAllProducers, kGroupThreads) : __syncwarp();
  const int lane = thread % 32, box = lane / kHalves<D>, half = lane % kHalves<D>;
  if (box >= count || box % kProducerWarps != thread / 32) return;
  if (kWindow && box < found.skipped) return;
  const unsigned to = tile + half * kTokens<D> * kRowBytes + box * boxes.tokens * kRowBytes;
  copy_box(to, tensor, half * kHalf, found.within, kv_head, found.block, full);
}

// Produces the tiles of a work tile, whose rows attend to tokens of [begin, end), the last one
// first. tiles_done: tiles of earlier work tiles.
template <typename T, int D, typename Part>
__device__ __forceinline__ void produce_boxes(const Part& part, const Shared<T, D>& shared,
                                              const CacheMaps& maps, const Boxes& boxes, int begin,
                                              int end, int tiles_done, int thread) {
  const int lane = thread % 32, first_tile = Part::kWindowed ? begin / kTokens<D> : 0;
  int tile = count_tiles<D>(end) - 1;
  TileBoxes next = locate_boxes<D>(part, boxes, begin, end, tile, lane);
  for (; tile >= first_tile; --tile, ++tiles_done) {
    const TileBoxes found = next;
    if (tile > first_tile) next = locate_boxes<D>(part, boxes, begin, end, tile - 1, lane);
    const bool run = is_run<D, Part::kWindowed>(found, boxes, lane);
    const int count = run ? 1 : found.count;
    const PipelineState<T, D> state(tiles_done);
    copy_boxes<D, Part::kWindowed>(run ? maps.key_runs : maps.keys, boxes, found, count,
                                   part.kv_head, shared.keys(state.stage),
                                   shared.keys_full(state.stage), shared.keys_empty(state.stage),
                                   state.parity ^ 1, thread);
    copy_boxes<D, Part::kWindowed>(run ? maps.value_runs : maps.values, boxes, found, count,
                                   part.kv_head, shared.values(state.stage),
                                   shared.values_full(state.stage),
                                   shared.values_empty(state.stage), state.parity ^ 1, thread);
  }
}

// Copies tokens `from` to `to` of the tile that begins with token `first`.
template <typename T, int D, typename Part>
__device__ __forceinline__ void copy_tokens(const Part& part, const T* cache, int first, int from,
                                            int to, unsigned tile, const Barrier& full, int lane) {
  constexpr int kChunks = D / 8;
#pragma unroll 1
  for (int at = from * kChunks + lane; at < to * kChunks; at += 32) {
    const int token = at / kChunks, chunk = at % kChunks;
    store_chunk<kTokens<D>>(tile, token, chunk,
                            load_vector(cache + part.kv_offset_at(first + token) + chunk * 8).word);
  }
  fence_shared_writes();
  __syncwarp();
  if (lane == 0) full.arrive();
}

// The same, token by token.
template <typename T, int D, typename Part>
__device__ __forceinline__ void produce_tokens(const Part& part, const Shared<T, D>& shared,
                                               int begin, int end, int tiles_done, int lane) {
  const int first_tile = Part::kWindowed ? begin / kTokens<D> : 0;
#pragma unroll 1
  for (int tile = count_tiles<D>(end) - 1; tile >= first_tile; --tile, ++tiles_done) {
    const int first = tile * kTokens<D>, count = min(kTokens<D>, end - first);
    const int skipped = Part::kWindowed ? max(0, begin - first) : 0;
    const PipelineState<T, D> state(tiles_done);
#pragma unroll 1
    for (int values = 0; values < 2; ++values) {
      const Barrier empty =
          shared.barrier(values * 2 * kStages<T, D> + kStages<T, D> + state.stage);
      const Barrier full = shared.barrier(values * 2 * kStages<T, D> + state.stage);
      empty.wait(state.parity ^ 1);
      copy_tokens<T, D>(part, values == 0 ? part.p.keys : part.p.values, first, skipped, count,
                        shared.keys(values * kStages<T, D> + state.stage), full, lane);
    }
  }
}

// The same with a cache of E4m3, by all threads of the warpgroup. Each copies pieces of 16 numbers
// into a ring, several tiles ahead, and stores the same pieces as float16 in the tiles, so that no
// thread waits for another. Rows of tokens beyond [begin, end) are zeros.
template <typename T, int D, typename Part>
class E4m3Producer {
 public:
  __device__ __forceinline__ E4m3Producer(const Part& part, const Shared<T, D>& shared, int begin,
                                          int end, int thread)
      : part_(part),
        shared_(shared),
        begin_(begin),
        end_(end),
        last_tile_(count_tiles<D>(end) - 1),
        first_row_(thread / 32 * kWarpTokens),
        lane_(thread % 32),
        own_(thread * 16) {}

  __device__ __forceinline__ void produce(int tiles_done) {
    // Tile 2 i is the keys of the i-th tile, tile 2 i + 1 its values.
    const int tiles = 2 * (last_tile_ + 1 - (Part::kWindowed ? begin_ / kTokens<D> : 0));
#pragma unroll 1
    for (int i = 1 - kRing; i < tiles; ++i) {
      if (i + kRing - 1 < tiles) copy(i + kRing - 1);
      commit_copies();  // without copies, too, so that groups can be counted
      if (i < 0) continue;
      wait_for_copies<kRing - 1>();
      store(i, PipelineState<T, D>(tiles_done + i / 2));
    }
  }

 private:
  static constexpr int kRing = kE4m3Stages<T, D>;
  static constexpr int kWarpTokens = kTokens<D> / kProducerWarps;
  // A warp copies 64 numbers of 8 tokens at once, which lie in different banks both in the ring and
  // in a tile.
  static constexpr int kGroups = kWarpTokens / 8, kPieces = kGroups * kHalves<D>;

  __device__ __forceinline__ unsigned piece(int tile, int number) const {
    return shared_.e4m3_tile(tile % kRing) + number * kGroupThreads * 16 + own_;
  }

  __device__ __forceinline__ void copy(int tile) {
    const int first = (last_tile_ - tile / 2) * kTokens<D> + first_row_;
    if (tile % 2 == 0) {  // values have the offsets of keys
      const int token = min(first + lane_ % kWarpTokens, end_ - 1);
      offset_ = part_.kv_offset_at(Part::kWindowed ? max(token, begin_) : token);
    }
    const E4m3* const cache = tile % 2 == 0 ? part_.p.keys : part_.p.values;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int row = group * 8 + lane_ / 4, token = first + row;
      const long long offset = __shfl_sync(~0u, offset_, row);
      const bool valid = token < end_ && (!Part::kWindowed || token >= begin_);
#pragma unroll
      for (int half = 0; half < kHalves<D>; ++half) {
        copy_chunk(piece(tile, group * kHalves<D> + half),
                   cache + offset + half * kHalf + lane_ % 4 * 16, valid);
      }
    }
  }

  __device__ __forceinline__ void store(int tile, const PipelineState<T, D>& state) const {
    const int values = tile % 2 * kStages<T, D>;
    const Barrier full = shared_.barrier(2 * values + state.stage);
    const Barrier empty = shared_.barrier(2 * values + kStages<T, D> + state.stage);
    // No warp misses a phase: the next one needs the arrivals of all of them.
    empty.wait(state.parity ^ 1);
#pragma unroll
    for (int number = 0; number < kPieces; ++number) {
      const int row = first_row_ + number / kHalves<D> * 8 + lane_ / 4;
      const int chunk = (number % kHalves<D> * 4 + lane_ % 4) * 2;
      unsigned numbers[4], low[4], high[4];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(numbers[0]), "=r"(numbers[1]), "=r"(numbers[2]), "=r"(numbers[3])
                   : "r"(piece(tile, number))
                   : "memory");
      widen_e4m3_to_half(numbers[0], low[0], low[1]);
      widen_e4m3_to_half(numbers[1], low[2], low[3]);
      widen_e4m3_to_half(numbers[2], high[0], high[1]);
      widen_e4m3_to_half(numbers[3], high[2], high[3]);
      store_chunk<kTokens<D>>(shared_.keys(values + state.stage), row, chunk, low);
      store_chunk<kTokens<D>>(shared_.keys(values + state.stage), row, chunk + 1, high);
    }
    fence_shared_writes();
    __syncwarp();
    if (lane_ == 0) full.arrive();
  }

  const Part& part_;
  const Shared<T, D> shared_;
  const int begin_, end_, last_tile_;
  const int first_row_;  // of this warp, in a tile
  const int lane_;
  const unsigned own_;    // where a group's pieces are this thread's
  long long offset_ = 0;  // of this lane's token
};

// The work of the producer warpgroup, for rows that attend to tokens of [begin, end).
template <typename T, int D, typename Part>
__device__ __forceinline__ void produce(const Part& part, const Shared<T, D>& shared,
                                        const CacheMaps& maps, const Boxes& boxes, int begin,
                                        int end, int tiles_done, int thread) {
  if (end == 0) return;
  if constexpr (kIsE4m3<T>) {
    E4m3Producer<T, D, Part>(part, shared, begin, end, thread).produce(tiles_done);
  } else {
    if (thread >= boxes.warps<D>() * 32) return;
    if (boxes.bulk) {
      produce_boxes(part, shared, maps, boxes, begin, end, tiles_done, thread);
    } else {
      produce_tokens<T, D>(part, shared, begin, end, tiles_done, thread);
    }
  }
}

// A warpgroup copies its 64 packed rows, with zeros for missing ones.
template <typename T, int D>
__device__ __forceinline__ void copy_queries(const AttentionRows<T>& part, unsigned queries,
                                             int first, int first_packed, int thread) {
  constexpr int kChunks = D / 8, kRowsAtOnce = kGroupThreads / kChunks;
  // With 8 rows at once a thread's chunks have the same index in their rows.
  const int row = thread / kChunks, chunk = thread % kChunks;
#pragma unroll
  for (int i = 0; i < kGroupRows; i += kRowsAtOnce) {
    Vector<T> vector{};
    if (first_packed + row + i < part.packed_rows) {
      vector = load_vector(part.query(first_packed + row + i) + chunk * 8);
    }
    store_chunk<kRows>(queries + i / 8 * 8 * kRowBytes, first + row + i % 8, chunk, vector.word);
  }
}

// The same for a cache of E4m3: as float16, and the inverses of their factors.
template <typename T, int D>
__device__ __forceinline__ void copy_scaled_queries(const AttentionRows<T>& part,
                                                    const Shared<T, D>& shared, int first,
                                                    int first_packed, int thread) {
  using Row = typename AttentionTypes<T>::Row;
  constexpr int kChunks = D / 8, kRowsAtOnce = kGroupThreads / kChunks;
  const int row = thread / kChunks, chunk = thread % kChunks;
#pragma unroll 1
  for (int i = 0; i < kGroupRows; i += kRowsAtOnce) {
    Vector<Row> vector{};
    if (first_packed + row + i < part.packed_rows) {
      vector = load_vector(part.query(first_packed + row + i) + chunk * 8);
    }
    const Floats<Row> floats = widen(vector);
    float largest = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(floats.element[j]));
#pragma unroll
    for (int lanes = 1; lanes < kChunks; lanes *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const QueryScale scale(largest);
    Floats<F16> halves;
#pragma unroll
    for (int j = 0; j < 8; ++j) halves.element[j] = floats.element[j] * scale.factor;
    store_chunk<kRows>(shared.queries(), first + row + i, chunk, narrow(halves).word);
    if (chunk == 0) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared.query_factor(first + row + i)),
                   "f"(scale.inverse)
                   : "memory");
    }
  }
}

// All consumers set rows [from, to) of a tile to zero: the memory may hold anything, and a weight
// of zero times NaN is NaN.
template <int D>
__device__ __forceinline__ void clear_rows(unsigned tile, int from, int to, int thread) {
  constexpr int kChunks = D / 8;
  for (int at = from * kChunks + thread; at < to * kChunks; at += kConsumers * kGroupThreads) {
    store_chunk<kTokens<D>>(tile, at / kChunks, at % kChunks, {0, 0, 0, 0});
  }
}

#endif

// The tensor map of heads of D elements, in boxes of kHalf of them. `dimensions` start with the
// second innermost one.
template <typename T, int D, std::size_t kDimensions>
CUtensorMap describe(const void* data, const std::array<Dimension, kDimensions>& dimensions) {
  std::array<Dimension, kDimensions + 1> all{{{D, 1, kHalf}}};
  std::copy(dimensions.begin(), dimensions.end(), all.begin() + 1);
  return describe_tensor("attention", dtype_of<T>, data, all);
}

// The tensor map of a layer's keys or values, in boxes of some tokens of a head, of one cache block
// or of several consecutive ones.
template <typename T, int D>
CUtensorMap describe(const TensorView& cache, int box_tokens, int box_blocks = 1) {
  return describe<T, D, 3>(cache.data, {{{cache.shape[1], cache.stride[1], box_tokens},
                                         {cache.shape[2], cache.stride[2], 1},
                                         {cache.shape[0], cache.stride[0], box_blocks}}});
}

// The tensor map of the queries, in boxes of packed rows: all heads of a group of some rows.
template <typename T, int D>
CUtensorMap describe_queries(const Attention& args, int packed_rows) {
  return describe<T, D, 2>(args.q.data,
                           {{{args.q.shape[1], args.q.stride[1], args.group},
                             {args.q.shape[0], args.q.stride[0], packed_rows / args.group}}});
}

// Whether a tensor map can describe it: strides are in bytes, multiples of 16, below 2^40.
inline bool can_be_described(const TensorView& cache) {
  if (cache.shape[0] == 0 || !cache.aligned(16)) return false;
  return std::all_of(cache.stride.begin(), cache.stride.begin() + 3, [](std::int64_t stride) {
    return stride > 0 && stride % 8 == 0 && stride < std::int64_t{1} << 39;
  });
}

// Whether a cache of E4m3 can be copied in chunks of 16 bytes.
inline bool has_whole_chunks(const kernels::KvView& kv) {
  const auto is_whole = [](const TensorView& cache) {
    return cache.aligned(16) && std::all_of(cache.stride.begin(), cache.stride.begin() + 3,
                                            [](std::int64_t stride) { return stride % 16 == 0; });
  };
  return is_whole(kv.keys) && is_whole(kv.values);
}

// How to copy any cache.
inline Boxes by_tokens(const kernels::KvView& kv) {
  return {.bulk = false, .tokens = 1, .block_size = static_cast<int>(kv.block_size())};
}

// How to copy this cache. Boxes do not cross cache blocks.
template <int D>
Boxes boxes_for(const kernels::KvView& kv) {
  const bool paged = kv.block_table.data != nullptr;
  const auto block_size = static_cast<int>(kv.block_size());
  const int tokens = paged ? std::gcd(block_size, kTokens<D>) : kTokens<D>;
  if (tokens < kMinBoxTokens || !can_be_described(kv.keys) || !can_be_described(kv.values)) {
    return by_tokens(kv);
  }
  return {.bulk = true, .tokens = tokens, .block_size = block_size};
}

// Whether a tile is several whole cache blocks.
template <int D>
bool blocks_make_tiles(const kernels::KvView& kv, const Boxes& boxes) {
  return boxes.bulk && kv.block_table.data != nullptr && boxes.tokens == boxes.block_size &&
         boxes.tokens < kTokens<D>;
}

// Whether the packed rows of a KV head are whole groups, so that a TMA box holds some of them.
inline bool queries_are_boxes(const Attention& args) {
  const std::int64_t row = args.q.stride[0];
  return args.first_head % args.group == 0 && args.q.shape[1] % args.group == 0 &&
         args.group <= kRows && args.q.shape[0] > 0 && args.q.aligned(16) && row > 0 &&
         row % 8 == 0 && row < std::int64_t{1} << 39;
}

// Whether kernels of sm_90a for heads of 64, 128, ... up to max_head_dim support these arguments on
// this device.
inline bool serves(const Attention& args, std::int64_t max_head_dim) {
  const std::int64_t head_dim = args.q.shape[2];
  const bool has_kernel = head_dim == 64 || head_dim == 128 || head_dim == 256;
  return has_kernel && head_dim <= max_head_dim && args.scale > 0 && args.out.aligned(16) &&
         runs_sm90a();
}

}  // namespace nvllm::kernels::cuda::sm90
