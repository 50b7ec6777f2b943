// The shared-memory pipeline of attention on Hopper, between its producer warpgroup (producer.cuh)
// and its consumers (consumer.cuh).
//
// A block holds the queries of 128 packed rows and a ring of kStages KV tiles of kTokens tokens.
// For each stage, keys and values have a "full" mbarrier, at which copies arrive, and an "empty"
// one, at which consumers release the tile.
#pragma once

#include <type_traits>

#include "device/cuda/stream.h"
#include "kernels/attention/sm80/attention_params.cuh"
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
  // The queries of a work tile, and the published work tile itself (prefill.cu).
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

template <typename Word>  // of 32 bits
__device__ __forceinline__ void load_words(unsigned from, Word (&word)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_words(unsigned to, const unsigned (&word)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]),
               "r"(word[2]), "r"(word[3])
               : "memory");
}

template <int kTileRows>
__device__ __forceinline__ void store_chunk(unsigned tile, int row, int chunk,
                                            const unsigned (&word)[4]) {
  store_words(chunk_of<kTileRows>(tile, row, chunk), word);
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
