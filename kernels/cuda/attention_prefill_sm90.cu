// Attention of many query rows per sequence on Hopper: a block has 128 packed rows of a sequence and a KV head,
// 64 per consumer warpgroup, whose tensor cores work on tiles of 128 tokens that a producer warp has
// copied in bulk. A warpgroup takes the weights of one tile while its tensor cores still add up the tile
// before; the two warpgroups take turns, so that one's weights are taken under the other's products.
//
// The last tile of tokens is the first to be worked on: it alone, and the few before it that a block's rows
// end in, need masks.
#include <cuda.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/attention_rows_sm90.cuh"
#include "kernels/cuda/attention_tiles_sm90.cuh"

namespace nvllm::kernels::cuda {
namespace sm90 {
namespace {

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
constexpr int kAllConsumers = 1;                      // the number of their barrier
constexpr int kFirstGroup = 2;                        // of each warpgroup alone
constexpr int kFirstTurn = kFirstGroup + kConsumers;  // its turn has come

// A consumer warpgroup.
template <typename T, int D>
__device__ __forceinline__ void consume(const AttentionPart<T>& part, const Shared<D>& shared,
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

#endif

template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel_sm90(const AttentionParams<T> p, const __grid_constant__ CUtensorMap keys,
                        const __grid_constant__ CUtensorMap values, const Boxes boxes) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const Shared<D> shared(memory);
  const RowBlock block =
      find_row_block<kRows>(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  if (block.sequence < 0) return;
  const AttentionPart<T> part(p, block.sequence, blockIdx.y);
  const int block_row = block.first_row;
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
#endif
}

// A layer's keys or values as bulk copies see them.
template <typename T, int D>
CUtensorMap describe(const TensorView& cache, int box_tokens) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    nvllm::cuda::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &found),
                       "looking for cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto size = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t shape[] = {size(D), size(cache.shape[1]), size(cache.shape[2]),
                              size(cache.shape[0])};
  const cuuint64_t strides[] = {size(cache.stride[1] * 2), size(cache.stride[2] * 2),
                                size(cache.stride[0] * 2)};
  const cuuint32_t box[] = {kHalf, static_cast<cuuint32_t>(box_tokens), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map,
             dtype_of<T> == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, cache.data, shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail("attention: describing the cache to the GPU: CUresult ", result);
  return map;
}

// Strides are told in bytes, in multiples of 16, below 2^40.
bool can_be_described(const TensorView& cache) {
  if (cache.shape[0] == 0 || !cache.aligned(16)) return false;
  return std::all_of(cache.stride.begin(), cache.stride.begin() + 3, [](std::int64_t stride) {
    return stride > 0 && stride % 8 == 0 && stride < std::int64_t{1} << 39;
  });
}

// Boxes do not cross blocks.
Boxes boxes_for(const kernels::KvView& kv) {
  const bool paged = kv.block_table.data != nullptr;
  const auto block_size = static_cast<int>(kv.block_size());
  const int tokens = paged ? std::gcd(block_size, kTokens) : kTokens;
  if (tokens < kLeastBoxTokens || !can_be_described(kv.keys) || !can_be_described(kv.values)) {
    return {.bulk = false, .tokens = 1, .block_size = block_size};
  }
  return {.bulk = true, .tokens = tokens, .block_size = block_size};
}

template <int D, typename T>
void launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const Boxes boxes = boxes_for(args.kv);
  const auto map_of = [&](const TensorView& cache) {
    return boxes.bulk ? describe<T, D>(cache, boxes.tokens) : CUtensorMap{};
  };
  const auto kernel = prefill_kernel_sm90<T, D>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>),
      "preparing attention");
  const dim3 blocks(static_cast<unsigned>(p.most_row_blocks(args.q.shape[0], kRows)), p.kv_heads());
  kernel<<<blocks, kThreads, kSharedBytes<D>, stream>>>(p, map_of(args.kv.keys),
                                                        map_of(args.kv.values), boxes);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

bool is_hopper() {
  return nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

}  // namespace
}  // namespace sm90

template <typename T>
bool attention_prefill_sm90(const Attention& args, cudaStream_t stream) {
  const std::int64_t head_dim = args.q.shape[2];
  if ((head_dim != 64 && head_dim != 128) || args.scale <= 0 || !sm90::is_hopper()) return false;
  head_dim == 64 ? sm90::launch<64, T>(args, stream) : sm90::launch<128, T>(args, stream);
  return true;
}

template bool attention_prefill_sm90<Bf16>(const Attention& args, cudaStream_t stream);
template bool attention_prefill_sm90<F16>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
