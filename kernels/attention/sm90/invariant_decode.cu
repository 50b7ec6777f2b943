// Decode attention on Hopper with the bits of the prefill kernel (Attention::invariant): two
// kernels, their launches, and the choice between them. With few sequences, a cluster of blocks
// computes each KV head of a sequence (invariant_decode_clusters.cuh); with many, a block of one,
// two or four warps does (invariant_decode_warps.cuh). Both support one row per sequence, up to 8
// packed rows, bfloat16 or float16, head_dim 64 or 128, and cache blocks of whole boxes of 16
// tokens.
#include <algorithm>
#include <array>

#include "kernels/attention/sm90/entry_points.h"
#include "kernels/attention/sm90/invariant_decode_clusters.cuh"
#include "kernels/attention/sm90/invariant_decode_warps.cuh"
#include "kernels/common/sm80/launch.cuh"

namespace nvllm::kernels::cuda {
namespace invariant_decode {
namespace {

static_assert(clusters::kStepTokens == warps::kStepTokens);

// In boxes of 16 tokens and `columns` columns of a head.
CUtensorMap describe(const TensorView& cache, int columns) {
  const int row = std::min(columns, sm90::kHalf);
  const std::array<Dimension, 5> dimensions{
      {{row, 1, row},
       {cache.shape[1], cache.stride[1], clusters::kStepTokens},
       {cache.shape[3] / row, row, columns / row},
       {cache.shape[2], cache.stride[2], 1},
       {cache.shape[0], cache.stride[0], 1}}};
  const auto swizzle = row == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : row == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                   : CU_TENSOR_MAP_SWIZZLE_32B;
  return describe_tensor("attention", cache.dtype, cache.data, dimensions,
                         CU_TENSOR_MAP_L2_PROMOTION_NONE, swizzle);
}

// grid: a cluster of kBlocks blocks for each KV head and sequence. history_is_visible: see
// Attention.
template <typename T, int D, int kBlocks>
__global__ void __launch_bounds__(clusters::kThreads, 1)
    invariant_decode_kernel(const AttentionParams<T> p, const __grid_constant__ CUtensorMap keys,
                            const __grid_constant__ CUtensorMap values, bool history_is_visible) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!history_is_visible) pdl_begin();
  const AttentionPart<T> part(p, blockIdx.z, blockIdx.y);
  if (part.packed_rows == 0) {  // all blocks of the cluster return here
    if (history_is_visible) pdl_begin();
    return;
  }
  const clusters::Work<T, D, kBlocks> work(part, memory);
  if (threadIdx.x == 0) prefetch(keys), prefetch(values), work.start();
  __syncthreads();
  arrive_at_cluster();  // waited for before anything is sent
  if (threadIdx.x < clusters::kWorkers * 32) {
    clusters::Worker<T, D, kBlocks>(work, keys).run(history_is_visible);
  } else {
    clusters::ValueWarp<T, D, kBlocks>(work, values).run(history_is_visible);
  }
#endif
}

template <typename T, int D, int kBlocks>
void launch_clusters(const Attention& args, cudaStream_t stream) {
  using Here = clusters::Layout<D, kBlocks>;
  const AttentionParams<T> p(args);
  const auto kernel = invariant_decode_kernel<T, D, kBlocks>;
  allow_shared_memory(kernel, Here::kBytes, "preparing attention");
  const LaunchShape shape{
      dim3(kBlocks, static_cast<unsigned>(p.kv_heads()), static_cast<unsigned>(p.sequences)),
      dim3(clusters::kThreads), static_cast<std::size_t>(Here::kBytes), kBlocks};
  launch_with_pdl("launching attention", kernel, shape, stream, p, describe(args.kv.keys, D),
                  describe(args.kv.values, Here::kColumns), args.history_is_visible);
}

// grid: a block for each KV head and sequence.
template <typename T, int D, int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    invariant_decode_warps_kernel(const AttentionParams<T> p,
                                  const __grid_constant__ CUtensorMap keys,
                                  const __grid_constant__ CUtensorMap values,
                                  bool history_is_visible) {
#if __CUDA_ARCH__ >= 900
  using Here = warps::Layout<D, kWarps>;
  extern __shared__ __align__(1024) unsigned char memory[];
  if (threadIdx.x == 0) {
    prefetch(keys), prefetch(values);
    const unsigned barriers = shared_address(memory) + Here::kBarriers;
    for (int i = 0; i < 2 * kWarps * warps::kStages; ++i)
      Barrier{barriers + i * 8}.init(Here::kShared && i >= kWarps * warps::kStages ? kWarps : 1);
    fence_barrier_init();
  }
  __syncthreads();
  if (!history_is_visible) pdl_begin();
  const AttentionPart<T> part(p, blockIdx.y, blockIdx.x);
  if (part.packed_rows == 0) {  // all warps return here
    if (history_is_visible) pdl_begin();
    return;
  }
  warps::Warp<T, D, kWarps>(part, keys, values, memory).run(history_is_visible);
#endif
}

template <typename T, int D, int kWarps>
void launch_warps(const Attention& args, const AttentionParams<T>& p, cudaStream_t stream) {
  using Here = warps::Layout<D, kWarps>;
  const auto kernel = invariant_decode_warps_kernel<T, D, kWarps>;
  allow_shared_memory(kernel, Here::kBytes, "preparing attention");
  const LaunchShape shape{
      dim3(static_cast<unsigned>(p.kv_heads()), static_cast<unsigned>(p.sequences)),
      dim3(kWarps * 32), static_cast<std::size_t>(Here::kBytes)};
  launch_with_pdl("launching attention", kernel, shape, stream, p, describe(args.kv.keys, D),
                  describe(args.kv.values, Here::kShared ? D : Here::kColumns),
                  args.history_is_visible);
}

// Warps of a block: one block of 4, two of 2 or four of 1 fit on a multiprocessor. With equally
// many tokens per unit, twice or four times as many units end at the same time.
int warps_for(long long units, int processors) {
  if (units <= processors) return 4;
  const auto busy = [&](long long at_once) {  // a share of the time
    return static_cast<double>(units) / ((units + at_once - 1) / at_once * at_once);
  };
  return units <= 2 * processors || busy(4 * processors) < 0.9 * busy(2 * processors) ? 2 : 1;
}

template <typename T>
void launch_warps(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const int count = warps_for(static_cast<long long>(p.sequences) * p.kv_heads(),
                              nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount));
  if (p.head_dim == 64) {
    return count == 4 ? launch_warps<T, 64, 4>(args, p, stream)
                      : launch_warps<T, 64, 1>(args, p, stream);
  }
  switch (count) {
    case 4: return launch_warps<T, 128, 4>(args, p, stream);
    case 2: return launch_warps<T, 128, 2>(args, p, stream);
    default: return launch_warps<T, 128, 1>(args, p, stream);
  }
}

// Clusters cannot fill the GPU: each lies within one GPC, and GPCs have unequal sizes. Where there
// are more sequences than for clusters of four, one block each keeps as many multiprocessors busy.
template <typename T, int D>
void launch(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const long long units = static_cast<long long>(p.sequences) * p.kv_heads();
  const int processors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  if constexpr (D == 128) {
    if (units * 8 <= processors * 9 / 10) return launch_clusters<T, D, 8>(args, stream);
  }
  if (units * 4 <= processors * 9 / 10) return launch_clusters<T, D, 4>(args, stream);
  launch_warps<T>(args, stream);
}

template <typename T>
void launch(const Attention& args, cudaStream_t stream) {
  if (args.kv_length.shape[0] == 0) return;
  args.q.shape[2] == 64 ? launch<T, 64>(args, stream) : launch<T, 128>(args, stream);
}

}  // namespace
}  // namespace invariant_decode

bool attention_invariant_decode_sm90(const Attention& args, cudaStream_t stream) {
  using namespace invariant_decode;
  const bool one_row = args.max_query_rows == 1 && args.visible.data == nullptr;
  const bool boxes =
      args.kv.block_table.data == nullptr || args.kv.block_size() % clusters::kStepTokens == 0;
  if (!sm90::serves(args, 128) || !one_row || args.window != 0 || !boxes ||
      std::min(args.group, args.q.shape[1]) > clusters::kRows ||
      args.kv.keys.dtype != args.q.dtype || !sm90::can_be_described(args.kv.keys) ||
      !sm90::can_be_described(args.kv.values)) {
    return false;
  }
  args.q.dtype == DType::bf16 ? launch<Bf16>(args, stream) : launch<F16>(args, stream);
  return true;
}

}  // namespace nvllm::kernels::cuda
