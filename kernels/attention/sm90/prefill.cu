// Prefill attention (many query rows per sequence) on Hopper, bfloat16 and float16, head_dim 64,
// 128 or 256, to a cache of the rows' type or of E4m3: warp-specialized, following
// FlashAttention-3.
//
// A work tile is up to 128 packed rows of a sequence and a KV head. A block runs one or several
// work tiles in sequence (TileSchedule); its producer warpgroup (producer.cuh) copies queries and
// KV tiles with TMA, and its two consumer warpgroups (consumer.cuh) compute. The producer finds the
// next work tile and publishes it in shared memory, so that its first copies overlap the end of the
// previous one. The grid is an upper bound for all lengths that a captured graph may see.
#include <algorithm>
#include <cstdint>

#include "kernels/attention/sm90/consumer.cuh"
#include "kernels/attention/sm90/entry_points.h"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

// The order of the work tiles, and their assignment to blocks. Work tiles with the most tokens come
// first, but only within groups of KV heads whose keys and values together fit into the L2 cache.
struct TileSchedule {
  int row_blocks;  // of a KV head, at most
  int rows;        // packed rows of each
  int kv_heads;
  int heads_at_once;
  bool queries_in_bulk;  // the queries of a work tile are one TMA box
  // A block with several work tiles copies the queries and KV tiles of the next one while the
  // previous one ends, but many short blocks balance the load better. So the first blocks run four
  // consecutive work tiles, some more blocks two, all others one.
  int blocks_of_four, blocks_of_two;
  // Alternatively there are only as many blocks as run at once, and each takes its next work tiles
  // alternately from both ends of the order.
  bool alternating;

  __host__ __device__ int work_tiles() const { return row_blocks * kv_heads; }
};

struct PrefillMaps {
  CUtensorMap queries, keys, values, key_runs, value_runs;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct WorkTile {
  int sequence = -1;  // -1: the work tile has no rows
  int kv_head, block_row;
  int first_row, packed_rows, tokens,
      first_visible;  // as in AttentionPart, without rows beyond this work tile

  template <bool kWindow, typename T>
  __device__ __forceinline__ AttentionPart<T, kWindow> part(const AttentionParams<T>& p) const {
    return {p, sequence, kv_head, first_row, packed_rows, tokens, first_visible};
  }

  __device__ __forceinline__ void store(unsigned to) const {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(sequence), "r"(kv_head),
                 "r"(block_row), "r"(first_row)
                 : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(packed_rows),
                 "r"(tokens), "r"(first_visible), "r"(0)
                 : "memory");
  }
  __device__ __forceinline__ static WorkTile load(unsigned from) {
    WorkTile work;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(work.sequence), "=r"(work.kv_head), "=r"(work.block_row),
                   "=r"(work.first_row)
                 : "r"(from)
                 : "memory");
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(work.packed_rows), "=r"(work.tokens)
                 : "r"(from + 16)
                 : "memory");
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(work.first_visible) : "r"(from + 24) : "memory");
    return work;
  }
};

// Finds a work tile by its number. All lanes of a warp call it together.
template <bool kWindow, typename T>
__device__ __forceinline__ WorkTile find_work_tile(const AttentionParams<T>& p,
                                                   const TileSchedule& schedule, int number) {
  const int together = schedule.row_blocks * schedule.heads_at_once;
  const int first_head = number / together * schedule.heads_at_once;
  const int heads = min(schedule.heads_at_once, schedule.kv_heads - first_head);
  const int rest = number % together;
  WorkTile work;
  work.kv_head = first_head + rest % heads;
  const RowBlock block = find_row_block(p, work.kv_head, rest / heads, schedule.rows);
  work.sequence = block.sequence;
  if (block.sequence < 0) return work;
  const AttentionPart<T, kWindow> part(p, block.sequence, work.kv_head);
  work.block_row = block.first_row;
  work.first_row = part.first_row;
  work.packed_rows = min(part.packed_rows, block.first_row + schedule.rows);
  work.tokens = part.tokens;
  work.first_visible = part.first_visible;
  return work;
}

// The number of this block's i-th work tile; -1: there are no more.
__device__ __forceinline__ int work_tile_number(const TileSchedule& schedule, int i) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  if (schedule.alternating) {
    const int number = i * blocks + (i % 2 == 0 ? block : blocks - 1 - block);
    return i * blocks < schedule.work_tiles() ? number : -1;
  }
  const int four = min(block, schedule.blocks_of_four),
            two = min(block - four, schedule.blocks_of_two);
  const int count = block < schedule.blocks_of_four                            ? 4
                    : block < schedule.blocks_of_four + schedule.blocks_of_two ? 2
                                                                               : 1;
  return i < count ? block + 3 * four + two + i : -1;
}

// A warp publishes the next work tile, or the end, to the consumers, and copies its queries if they
// are a TMA box.
template <typename T, int D>
__device__ __forceinline__ void publish_work_tile(const WorkTile& work, const AttentionParams<T>& p,
                                                  const TileSchedule& schedule,
                                                  const CUtensorMap& queries,
                                                  const Shared<T, D>& shared, int lane) {
  const bool bulk = work.sequence >= 0 && schedule.queries_in_bulk;
  const Barrier full = shared.queries_full();
  if (lane == 0) {
    work.store(shared.work_tile());
    bulk ? full.arrive_and_expect(schedule.rows * D * 2) : full.arrive();
  }
  __syncwarp();
  if (bulk && lane < kHalves<D>) {
    const int group = p.group_heads(work.kv_head);
    copy_box(shared.queries() + lane * kRows * kRowBytes, queries, lane * kHalf,
             p.head_begin(work.kv_head), work.first_row + work.block_row / group, full);
  }
}

// The producer warpgroup. Its first warp copies queries.
template <typename T, int D, bool kWindow>
__device__ __forceinline__ void produce_work_tiles(const AttentionParams<T>& p,
                                                   const TileSchedule& schedule,
                                                   const PrefillMaps& maps, const Boxes& boxes,
                                                   const Shared<T, D>& shared, int thread) {
  if (thread >= producing_warps<T, D>(boxes) * 32) return;
  const CacheMaps cache{maps.keys, maps.values, maps.key_runs, maps.value_runs};
  int tiles = 0, work_tiles = 0;
  for (int i = 0;; ++i) {
    const int number = work_tile_number(schedule, i);
    WorkTile work;
    if (number >= 0 && number < schedule.work_tiles()) {
      work = find_work_tile<kWindow>(p, schedule, number);
    }
    if (number >= 0 && work.sequence < 0) continue;
    if (thread < 32) {
      shared.queries_empty().wait((work_tiles++ & 1) ^ 1);
      publish_work_tile<T, D>(work, p, schedule, maps.queries, shared, thread);
    }
    if (number < 0) return;
    const auto part = work.part<kWindow>(p);
    const int begin = kWindow ? part.first_seen(work.block_row) : 0;
    const int end = visible_tokens(part, part.packed_rows);
    produce<T, D>(part, shared, cache, boxes, begin, end, tiles, thread);
    tiles += count_tiles<D>(begin, end);
  }
}

template <typename T, int D, bool kWindow>
__device__ __forceinline__ void consume_work_tiles(const AttentionParams<T>& p,
                                                   const TileSchedule& schedule, const Boxes& boxes,
                                                   const Shared<T, D>& shared, int group,
                                                   int thread) {
  Consumer<T, D> consumer(shared, group, thread);
  for (int work_tiles = 0;; ++work_tiles) {
    shared.queries_full().wait(work_tiles & 1);
    const WorkTile work = WorkTile::load(shared.work_tile());
    if (work.sequence < 0) return;
    const auto part = work.part<kWindow>(p);
    if (!schedule.queries_in_bulk) consumer.copy_own_queries(part, work.block_row);
    const ContextTiles<D, AttentionPart<T, kWindow>> tiles{
        part, boxes, kWindow ? part.first_seen(work.block_row) : 0,
        visible_tokens(part, part.packed_rows), PipelineState<T, D>(consumer.done()).stage};
    consumer.attend(part, tiles, work.block_row, [&] { consumer.release(shared.queries_empty()); });
  }
}

#endif

template <typename T, int D, bool kWindow>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel_sm90(const AttentionParams<T> p, const TileSchedule schedule,
                        const __grid_constant__ PrefillMaps maps, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const Shared<T, D> shared(memory);
  if (threadIdx.x == 0) {
    start_barriers(shared, kTileArrivals<T>, kTileArrivals<T>);
    if (schedule.queries_in_bulk) prefetch(maps.queries);
    if (boxes.bulk) {
      prefetch(maps.keys);
      prefetch(maps.values);
    }
  }
  __syncthreads();
  const int group = own_group();
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    lower_register_limit<72>();
    produce_work_tiles<T, D, kWindow>(p, schedule, maps, boxes, shared, thread);
  } else {
    raise_register_limit<216>();
    consume_work_tiles<T, D, kWindow>(p, schedule, boxes, shared, group, thread);
  }
#endif
}

// The part of the L2 cache for keys and values of the KV heads that blocks work on.
constexpr double kL2Bytes = 32 << 20;

// Whether, as far as the host knows, no work tile has many more tokens than most; or each is so
// short, one row of a sequence, that starting blocks dominates.
bool are_even(const Attention& args) {
  const std::int64_t sequences = args.kv_length.shape[0];
  if (args.max_query_rows == 1) return true;
  return sequences == 1 || (args.max_query_rows * sequences <= 2 * args.q.shape[0] &&
                            args.max_kv_length <= 2 * args.max_query_rows);
}

// The schedule for a GPU that runs `at_once` blocks at a time.
template <typename T>
TileSchedule schedule_of(const Attention& args, const AttentionParams<T>& p, int at_once) {
  TileSchedule schedule{};
  schedule.queries_in_bulk = !kIsE4m3<T> && queries_are_boxes(args);
  schedule.rows =
      schedule.queries_in_bulk ? static_cast<int>(kRows / args.group * args.group) : kRows;
  schedule.row_blocks = static_cast<int>(p.max_row_blocks(args.q.shape[0], schedule.rows));
  schedule.kv_heads = p.kv_heads();
  const double head_bytes =
      2.0 * sizeof(*p.keys) * p.head_dim * static_cast<double>(max_tokens_seen(args));
  schedule.heads_at_once = 1;
  while (schedule.heads_at_once < schedule.kv_heads &&
         (schedule.heads_at_once + 1) * head_bytes <= kL2Bytes) {
    ++schedule.heads_at_once;
  }
  const int work_tiles = schedule.work_tiles();
  schedule.alternating = p.sequences == 1 && work_tiles <= 4 * at_once;
  if (!schedule.alternating && are_even(args)) {
    schedule.blocks_of_four = work_tiles * 3 / 4 / (4 * at_once) * at_once;
    schedule.blocks_of_two =
        (work_tiles - 4 * schedule.blocks_of_four) * 3 / 4 / (2 * at_once) * at_once;
  }
  return schedule;
}

template <int D, typename T, bool kWindow>
void launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const int at_once = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const TileSchedule schedule = schedule_of(args, p, at_once);
  if (schedule.work_tiles() == 0) return;
  Boxes boxes = by_tokens(args.kv);
  PrefillMaps maps{};
  if constexpr (!kIsE4m3<T>) {
    boxes = boxes_for<D>(args.kv);
    boxes.runs = blocks_make_tiles<D>(args.kv, boxes);
    if (schedule.queries_in_bulk) maps.queries = describe_queries<T, D>(args, schedule.rows);
    if (boxes.bulk) {
      maps.keys = describe<T, D>(args.kv.keys, boxes.tokens);
      maps.values = describe<T, D>(args.kv.values, boxes.tokens);
    }
    if (boxes.runs) {
      maps.key_runs = describe<T, D>(args.kv.keys, boxes.tokens, kTokens<D> / boxes.tokens);
      maps.value_runs = describe<T, D>(args.kv.values, boxes.tokens, kTokens<D> / boxes.tokens);
    }
  }
  const auto kernel = prefill_kernel_sm90<T, D, kWindow>;
  allow_shared_memory(kernel, kSharedBytes<T, D>, "preparing attention");
  const int blocks = schedule.alternating ? std::min(schedule.work_tiles(), at_once)
                                          : schedule.work_tiles() - 3 * schedule.blocks_of_four -
                                                schedule.blocks_of_two;
  kernel<<<blocks, kThreads, kSharedBytes<T, D>, stream>>>(p, schedule, maps, boxes);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

}  // namespace
}  // namespace sm90

template <typename T, bool kWindow>
bool attention_prefill_sm90(const Attention& args, cudaStream_t stream) {
  if (!sm90::serves(args, 256)) return false;
  if (kIsE4m3<T> && !sm90::has_whole_chunks(args.kv)) return false;
  switch (args.q.shape[2]) {
    case 64: sm90::launch<64, T, kWindow>(args, stream); break;
    case 128: sm90::launch<128, T, kWindow>(args, stream); break;
    default: sm90::launch<256, T, kWindow>(args, stream);
  }
  return true;
}

template bool attention_prefill_sm90<Bf16, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<Bf16, true>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<F16, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<F16, true>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<E4m3Cache<Bf16>, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<E4m3Cache<Bf16>, true>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<E4m3Cache<F16>, false>(const Attention&, cudaStream_t);
template bool attention_prefill_sm90<E4m3Cache<F16>, true>(const Attention&, cudaStream_t);

}  // namespace nvllm::kernels::cuda
