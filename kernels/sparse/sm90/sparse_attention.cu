// Sparse attention of a prompt's rows on Hopper, bfloat16 and float16, head_dim 64 or 128: a block
// has a tile of 128 rows of a head and uses the consumers of dense prefill
// (kernels/attention/sm90/consumer.cuh).
//
// With a list of tiles the producer is that of dense prefill, and the cache may be of E4m3. With
// ranges and columns, tokens may be anywhere: the listed tokens are numbered, first those of the
// ranges, then the columns; KV tile i has the numbers [128 i, 128 i + 128), and a producer
// warpgroup copies it token by token with cp.async, each thread finding one token. Positions are
// stored with each tile in shared memory, so that consumers can mask the tokens after a row; only
// tiles with tokens after the block's first row are masked.
#include <algorithm>
#include <type_traits>

#include "kernels/attention/sm90/consumer.cuh"
#include "kernels/attention/sm90/producer.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/sparse/sm80/token_lists.cuh"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

static_assert(kRows == kSparseTile && kTokens<64> == kSparseTile && kTokens<128> == kSparseTile);

// The stage of keys is released before their scores are masked, so positions are kept for two
// rounds of stages. 16 bits suffice for each: masks only need the distance of a position from the
// block's first row.
inline constexpr int kPositionSlots = 2 * kStages<Bf16, 128>;
static_assert(kStages<Bf16, 64> == kStages<Bf16, 128>);
inline constexpr int kPositionBytes = kSparseTile * 2, kNewestBytes = kProducerWarps * 4;
inline constexpr int kFarBehind = 0x7fff;
static_assert(kRows <= kFarBehind && kNewestBytes == 16);
template <int D>
inline constexpr int kListedSharedBytes = kSharedBytes<Bf16, D> +
                                          kPositionSlots*(kPositionBytes + kNewestBytes);
inline constexpr int kMaxSharedBytes = 227 << 10;  // of a block, on Hopper
static_assert(kListedSharedBytes<128> <= kMaxSharedBytes);

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
  __device__ __forceinline__ int tiles() const {
    return (tokens() + kSparseTile - 1) / kSparseTile;
  }
  // The position of the token with this number; beyond the last number, a position after all rows.
  __device__ __forceinline__ int position(int number) const {
    if (number < ranges.tokens) return ranges.token(number);
    return number < tokens() ? columns.token(number - ranges.tokens) : 0x7fffffff;
  }
  // The token's offset in the cache.
  __device__ __forceinline__ long long kv_offset_at(int number, int position) const {
    return number < tokens() ? this->kv_offset(position) : 0;
  }
};

// The positions of a tile's tokens, relative to the block's first row, and the last position found
// by each producer warp.
template <int D>
struct Positions {
  unsigned base;

  template <typename T>
  __device__ __forceinline__ explicit Positions(const Shared<T, D>& shared)
      : base(shared.barrier(0).address + kBarrierBytes) {}
  __device__ __forceinline__ unsigned of_tile(int i) const {
    return base + i % kPositionSlots * kPositionBytes;
  }
  __device__ __forceinline__ unsigned newest_of(int i) const {
    return base + kPositionSlots * kPositionBytes + i % kPositionSlots * kNewestBytes;
  }
};

// Copies the 32 rows of a tile from row `first` on, which belong to a warp; each lane knows the
// cache offset of one row. Rows from number `count` of the tile on are zeroed.
template <typename T, int D>
__device__ __forceinline__ void copy_listed_rows(const T* cache, long long offset, unsigned tile,
                                                 int first, int count, int lane) {
  constexpr int kChunks = D / 8, kAtOnce = 32 / kChunks;
  // Hides the lane from the compiler, which would otherwise keep the derived addresses of every row
  // in registers.
  asm volatile("" : "+r"(lane));
  const int row = lane / kChunks, chunk = lane % kChunks;
  const unsigned to = chunk_of<kSparseTile>(tile, first + row, chunk);
#pragma unroll
  for (int i = 0; i < 32; i += kAtOnce) {
    const long long from = __shfl_sync(~0u, offset, row + i);
    // i and row have no common bits, so this is the chunk of row + i.
    copy_chunk((to ^ (i & 7) * 16) + i * kRowBytes, cache + from + chunk * 8,
               first + row + i < count);
  }
}

// The work of the producer warpgroup.
template <typename T, int D>
__device__ __forceinline__ void produce_listed(const ListedTokens<T>& listed,
                                               const Shared<T, D>& shared, int thread) {
  const Positions<D> positions(shared);
  const int tiles = listed.tiles(), lane = thread % 32, warp = thread / 32;
  int next_position = listed.position(thread);
  long long next_offset = listed.kv_offset_at(thread, next_position);
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    const int position = next_position;
    const long long offset = next_offset;
    const int count = listed.tokens() - i * kSparseTile;
    const int newest = __reduce_max_sync(~0u, position);
    const int behind = min(max(position - listed.first_position, 0), kFarBehind);
    const PipelineState<T, D> state(i);
    shared.keys_empty(state.stage).wait(state.parity ^ 1);
    store_half(positions.of_tile(i) + thread * 2, behind);
    if (lane == 0) store_word(positions.newest_of(i) + warp * 4, newest);
    copy_listed_rows<T, D>(listed.p.keys, offset, shared.keys(state.stage), warp * 32, count, lane);
    shared.keys_full(state.stage).arrive_after_copies();
    __syncwarp();
    if (lane == 0) shared.keys_full(state.stage).arrive();  // positions have arrived
    // Loads of lists and block table have a long latency; the stage of values becomes empty later
    // than that of keys.
    const int number = (i + 1) * kSparseTile + thread;
    next_position = listed.position(number);
    next_offset = listed.kv_offset_at(number, next_position);
    shared.values_empty(state.stage).wait(state.parity ^ 1);
    copy_listed_rows<T, D>(listed.p.values, offset, shared.values(state.stage), warp * 32, count,
                           lane);
    shared.values_full(state.stage).arrive_after_copies();
  }
}

// The tiles in the interface of consumers (compare ContextTiles), in ascending order.
template <typename T, int D>
struct ListedTiles {
  const ListedTokens<T>& listed;
  Positions<D> positions;

  __device__ __forceinline__ int count() const { return listed.tiles(); }

  struct Mask {
    int row, first_row_position;  // row of the block; position of the warpgroup's first row
    __device__ __forceinline__ Mask(const ListedTiles& tiles, int group_row, int row)
        : row(row), first_row_position(tiles.listed.first_position + group_row) {}
  };
  __device__ __forceinline__ void mask(const Mask& mask, int i, Rows<T, D>& rows, int lane) const {
    bool later = false;
    if (lane == 0) {  // lane 0 also releases the slot
      int newest[kProducerWarps];
      load_words(positions.newest_of(i), newest);
      later = max(max(newest[0], newest[1]), max(newest[2], newest[3])) > mask.first_row_position;
    }
    if (!__any_sync(~0u, later)) return;
#pragma unroll
    for (int j = 0; j < kSparseTile / 8; ++j) {
      int behind[2];
      load_halves(positions.of_tile(i) + (j * 8 + lane % 4 * 2) * 2, behind);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (behind[k % 2] > mask.row + k / 2 * 8) rows.scores[4 * j + k] = -INFINITY;
      }
    }
  }

  // The producer's copies are writes of its threads, not of the async proxy.
  __device__ __forceinline__ void arrived() const {
    fence_shared_writes();
  }
  __device__ __forceinline__ void zero_missing_values(const Shared<T, D>&, int) const {}
  __device__ __forceinline__ void zero_unseen_values(int, unsigned, int) const {}
};

// The work of a block with ranges and columns.
template <typename T, int D>
__device__ __forceinline__ void attend_listed(const ListedTokens<T>& listed, const void* memory) {
  const Shared<T, D> shared(memory);
  if (threadIdx.x == 0) start_barriers(shared, kGroupThreads + kProducerWarps, kGroupThreads);
  __syncthreads();
  const int group = own_group();
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    lower_register_limit<72>();
    produce_listed<T, D>(listed, shared, thread);
  } else {
    raise_register_limit<216>();
    consume<T, D>(listed, shared, ListedTiles<T, D>{listed, Positions<D>(shared)}, 0, group,
                  thread);
  }
}

#endif

// Grid: x is adjacent heads, which read the same keys; y tiles of rows; z such groups of heads. The
// last rows have the most tokens and may attend to all of them: those of all heads start first.
// Then the groups of heads follow in order, so that all blocks of a group read nearby tokens at
// about the same time.
template <typename T>
__device__ __forceinline__ AttentionRows<T> rows_of_block(const AttentionParams<T>& p,
                                                          const SparseLists& lists) {
  constexpr int kLastBlocks = 2;  // tiles of rows that contain a prompt's last 128
  const int together = static_cast<int>(gridDim.x), blocks = static_cast<int>(gridDim.y);
  const int groups = static_cast<int>(gridDim.z), last = min(blocks, kLastBlocks);
  int number = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y), group, block;
  if (number < last * groups) {
    group = number % groups;
    block = blocks - 1 - number / groups;
  } else {
    number -= last * groups;
    group = number / (blocks - last);
    block = blocks - last - 1 - number % (blocks - last);
  }
  return rows_of_head(p, lists, group * together + static_cast<int>(blockIdx.x), block * kRows,
                      kRows);
}

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    tiles_kernel_sm90(const AttentionParams<T> p, const SparseLists lists,
                      const __grid_constant__ CUtensorMap keys,
                      const __grid_constant__ CUtensorMap values, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const AttentionRows<T> rows = rows_of_block(p, lists);
  if (rows.head_begin >= p.heads) return;
  attend<T, D>(listed(rows, lists, tiles_of(rows, lists)), 0, keys, values, boxes, memory);
#endif
}

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    ranges_kernel_sm90(const AttentionParams<T> p, const SparseLists lists) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const AttentionRows<T> rows = rows_of_block(p, lists);
  if (rows.head_begin >= p.heads) return;
  attend_listed<T, D>(ListedTokens<T>(rows, ranges_of(rows, lists), columns_of(rows, lists),
                                      lists.first_position + rows.first_row),
                      memory);
#endif
}

template <typename... Params>
void launch(void (*kernel)(Params...), int shared_bytes, const SparseAttention& args,
            cudaStream_t stream, const std::type_identity_t<Params>&... params) {
  allow_shared_memory(kernel, shared_bytes, "preparing sparse_attention");
  const std::int64_t heads = args.q.shape[1], together = std::min(args.group, heads);
  const dim3 blocks(static_cast<unsigned>(together), static_cast<unsigned>(args.row_blocks()),
                    static_cast<unsigned>((heads + together - 1) / together));
  kernel<<<blocks, kThreads, shared_bytes, stream>>>(params...);
  nvllm::cuda::check(cudaGetLastError(), "launching sparse_attention");
}

template <typename T, int D>
void enqueue(const SparseAttention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args.attention_args());
  const SparseLists lists(args);
  if constexpr (!kIsE4m3<T>) {
    if (!args.by_tiles()) {
      return launch(ranges_kernel_sm90<T, D>, kListedSharedBytes<D>, args, stream, p, lists);
    }
  }
  const Boxes boxes = kIsE4m3<T> ? by_tokens(args.kv) : boxes_for<D>(args.kv);
  const auto map_of = [&](const TensorView& cache) {
    if constexpr (!kIsE4m3<T>) {
      if (boxes.bulk) return describe<T, D>(cache, boxes.tokens);
    }
    return CUtensorMap{};
  };
  launch(tiles_kernel_sm90<T, D>, kSharedBytes<T, D>, args, stream, p, lists, map_of(args.kv.keys),
         map_of(args.kv.values), boxes);
}

}  // namespace
}  // namespace sm90

template <typename T>
bool sparse_attention_sm90(const SparseAttention& args, cudaStream_t stream) {
  if (!sm90::serves(args.attention_args(), 128)) return false;
  if (kIsE4m3<T> && (!args.by_tiles() || !sm90::has_whole_chunks(args.kv))) return false;
  args.q.shape[2] == 64 ? sm90::enqueue<T, 64>(args, stream) : sm90::enqueue<T, 128>(args, stream);
  return true;
}

template bool sparse_attention_sm90<Bf16>(const SparseAttention& args, cudaStream_t stream);
template bool sparse_attention_sm90<F16>(const SparseAttention& args, cudaStream_t stream);
template bool sparse_attention_sm90<E4m3Cache<Bf16>>(const SparseAttention& args, cudaStream_t);
template bool sparse_attention_sm90<E4m3Cache<F16>>(const SparseAttention& args, cudaStream_t);

}  // namespace nvllm::kernels::cuda
