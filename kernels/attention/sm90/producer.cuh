// The producer warpgroup of attention on Hopper, which fills the pipeline of kv_pipeline.cuh, and
// on the host the tensor maps that it copies with.
//
// The producer copies the cache with TMA, tile by tile, while the consumers (consumer.cuh) compute
// on the previous tiles; if cache blocks are not a multiple of a TMA box, it copies token by token.
// A cache of E4m3 becomes float16 on the way (e4m3_producer.cuh).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

#include "kernels/attention/sm90/e4m3_producer.cuh"
#include "kernels/attention/sm90/kv_pipeline.cuh"
#include "kernels/common/cuda_arch.h"

namespace nvllm::kernels::cuda::sm90 {

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

// Tensor maps of the cache: boxes, and runs of consecutive cache blocks that make up a tile.
struct CacheMaps {
  const CUtensorMap& keys;
  const CUtensorMap& values;
  const CUtensorMap& key_runs;
  const CUtensorMap& value_runs;
};

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

// The warps of the producer warpgroup that produce() needs.
template <typename T, int D>
__device__ __forceinline__ int producing_warps(const Boxes& boxes) {
  return kIsE4m3<T> ? kProducerWarps : boxes.warps<D>();
}

// The work of the producer warpgroup, for rows that attend to tokens of [begin, end).
template <typename T, int D, typename Part>
__device__ __forceinline__ void produce(const Part& part, const Shared<T, D>& shared,
                                        const CacheMaps& maps, const Boxes& boxes, int begin,
                                        int end, int tiles_done, int thread) {
  if (end == 0 || thread >= producing_warps<T, D>(boxes) * 32) return;
  if constexpr (kIsE4m3<T>) {
    E4m3Producer<T, D, Part>(part, shared, begin, end, thread).produce(tiles_done);
  } else if (boxes.bulk) {
    produce_boxes(part, shared, maps, boxes, begin, end, tiles_done, thread);
  } else {
    produce_tokens<T, D>(part, shared, begin, end, tiles_done, thread);
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
