// Decode attention (few query rows per sequence) with split-KV, on tensor cores (mma.sync).
//
// A block has 16 packed rows of a sequence and a KV head, and its warps share the tokens: each warp
// takes every kWarps-th tile and copies its next one while it computes. The kernel is bound by
// reading keys and values once. Where there are few blocks and contexts may be long, the blocks of
// a cluster (sm_90) split the tokens further. Warps combine their partial results through shared
// memory, blocks through distributed shared memory. Rows may be any type with the members of
// AttentionPart. launch() configures and launches a kernel that calls attend().
#pragma once

#include "device/cuda/stream.h"
#include "kernels/attention/sm80/mma_rows.cuh"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm90/sync.cuh"

namespace nvllm::kernels::cuda::decode {

inline constexpr int kRows = 16;
// Up to this many packed rows per sequence these kernels are faster: they read the tokens once per
// 16 rows, with several warps; the prefill kernels read them once per 64 rows.
inline constexpr long long kMaxPackedRows = 32;
inline constexpr int kMaxCluster = 8;        // the portable maximum
inline constexpr int kMinBlockTokens = 256;  // combining costs about as much

// A warp's tiles of keys and values, two of each, take 16 KiB, or 32 KiB for the longest heads.
template <int D>
inline constexpr int kTokens = D <= 64 ? 32 : 16;
template <int D>
inline constexpr int kWarps = D <= 128 ? 4 : 2;

template <int D>
inline constexpr int kTileBytes = kTokens<D>* D * 2;
template <int D>
inline constexpr int kWarpBytes = 4 * kTileBytes<D>;
template <int D>
inline constexpr int kQueryBytes = kRows* D * 2;
template <int D>
inline constexpr int kSharedBytes = kQueryBytes<D> + kWarps<D>* kWarpBytes<D>;

// A partial result in shared memory: the weighted values of 16 rows, not yet divided by the sums of
// their weights. Padding of the rows avoids bank conflicts between lanes that store them.
template <int D, int kPadding = 0>
struct WarpPartial {
  float out[kRows][D + kPadding];
  float row_max[kRows];
  float sum[kRows];
};

// The number of blocks of the cluster; 1 without a cluster.
__device__ __forceinline__ int cluster_blocks() {
  unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
#endif
  return static_cast<int>(blocks);
}

// Waits until all blocks of the cluster are here. What they wrote to shared memory is then visible
// to all.
__device__ __forceinline__ void synchronize_cluster(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) {
    sync_cluster();
    return;
  }
#endif
  __syncthreads();
}

// Reads the float at the same address in the shared memory of another block of the cluster.
__device__ __forceinline__ float read_shared(const float* here, int block) {
#if __CUDA_ARCH__ >= 900
  const unsigned there = address_in(shared_address(here), block);
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
#else
  return *here;
#endif
}

// The weight of each partial result of a row, relative to the maximum over all of them, which is
// returned.
template <int kMax, typename Read>
__device__ __forceinline__ float combine_weights(int parts, const Read& max_of,
                                                 float (&weight)[kMax]) {
  float row_max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    weight[i] = i < parts ? max_of(i) : -INFINITY;
    row_max = fmaxf(row_max, weight[i]);
  }
#pragma unroll
  for (int i = 0; i < kMax; ++i) weight[i] = power_of_2(weight[i] - reference_of(row_max));
  return row_max;
}

// Combines the warps' partial results into one.
template <int D>
__device__ void combine_warps(const WarpPartial<D>* of_warp, WarpPartial<D>& combined) {
  for (int i = threadIdx.x; i < kRows * D; i += kWarps<D> * 32) {
    const int row = i / D, column = i % D;
    float weight[kWarps<D>], sum = 0, out = 0;
    const float row_max = combine_weights(
        kWarps<D>, [&](int warp) { return of_warp[warp].row_max[row]; }, weight);
#pragma unroll
    for (int warp = 0; warp < kWarps<D>; ++warp) {
      out += weight[warp] * of_warp[warp].out[row][column];
      sum += weight[warp] * of_warp[warp].sum[row];
    }
    combined.out[row][column] = out;
    if (column == 0) combined.row_max[row] = row_max, combined.sum[row] = sum;
  }
}

// Combines the blocks' partial results into the final one. Block `rank` writes its share.
template <typename T, int D, int kThreads = kWarps<D> * 32>
__device__ void combine_blocks(const AttentionRows<T>& part, int first_row,
                               const WarpPartial<D>& combined, int rank, int blocks) {
  const auto& p = part.p;
  const int rows = min(kRows, part.packed_rows - first_row);
  for (int i = rank * kThreads + threadIdx.x; i < rows * D; i += blocks * kThreads) {
    const int row = i / D, column = i % D;
    if (column >= p.head_dim) continue;
    float weight[kMaxCluster], sum = 0, out = 0;
    float row_max = combine_weights(
        blocks, [&](int block) { return read_shared(&combined.row_max[row], block); }, weight);
#pragma unroll
    for (int block = 0; block < kMaxCluster; ++block) {
      if (block >= blocks) break;
      out += weight[block] * read_shared(&combined.out[row][column], block);
      sum += weight[block] * read_shared(&combined.sum[row], block);
    }
    const long long index = part.index(first_row + row);
    p.add_sink(index, row_max, sum);
    p.store(index * p.head_dim + column, sum == 0 ? 0.0f : out / sum);
    if (p.lse != nullptr && column == 0) p.lse[index] = log_sum_exp(row_max, sum);
  }
}

// Stores the first `count` of a warp's rows (a WarpRows).
template <typename Rows, int D, int kPadding>
__device__ __forceinline__ void store_part(const Rows& rows, int count, int lane,
                                           WarpPartial<D, kPadding>& to) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    if (row >= count) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<float2*>(&to.out[row][rows.column(n)]) =
          make_float2(rows.out[n][2 * i], rows.out[n][2 * i + 1]);
    }
    if (lane % 4 == 0) to.row_max[row] = rows.row_max[i], to.sum[row] = rows.sum[i];
  }
}

// The work of a block. Its rows are those of blockIdx.x, which the blocks of its cluster share.
template <typename T, int D, typename TokenPart>
__device__ __forceinline__ void attend(const TokenPart& part) {
  constexpr int kTile = kTokens<D>;
  extern __shared__ __align__(128) unsigned char shared[];
  static_assert((kWarps<D> + 1) * sizeof(WarpPartial<D>) <= kSharedBytes<D>);
  const int blocks = cluster_blocks();
  const int rank = blockIdx.x % blocks;
  const int first_row = static_cast<int>(blockIdx.x) / blocks * kRows;
  if (first_row >= part.packed_rows) return;  // all blocks of the cluster return here
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = TokenPart::kWindowed ? part.first_seen(first_row) : 0;
  const int first_tile = begin / kTile;
  const int tokens = max(0, part.visible(min(first_row + kRows, part.packed_rows) - 1));
  const int tiles = (tokens + kTile - 1) / kTile - first_tile;
  const int end =
      first_tile + static_cast<int>(static_cast<long long>(tiles) * (rank + 1) / blocks);
  int tile = first_tile + static_cast<int>(static_cast<long long>(tiles) * rank / blocks) + warp;

  const unsigned queries = shared_address(shared);
  const unsigned ring = queries + kQueryBytes<D> + warp * kWarpBytes<D>;
  const auto copy_tile = [&](int next, int half) {
    const unsigned keys = ring + half * 2 * kTileBytes<D>;
    if (next < end) {
      copy_tokens<T, D, kTile>(part, next * kTile, keys, keys + kTileBytes<D>, 0, lane, begin);
    }
    commit_copies();  // an empty last group keeps the wait counts uniform
  };
  if constexpr (!kIsE4m3<T>) {
    if (warp == 0) copy_queries<D>(part, first_row, queries, 0, lane);
  }
  copy_tile(tile, 0);
  copy_tile(tile + kWarps<D>, 1);
  wait_for_copies<1>();
  __syncthreads();  // the queries have arrived

  WarpRows<T, D, kTile> rows(queries, 0, lane, part.p.score_scale(part.kv_head));
  if constexpr (kIsE4m3<T>) {
    rows.start(part, first_row);
  } else {
    rows.start();
  }
  const int visible[2] = {part.visible(first_row + lane / 4),
                          part.visible(first_row + lane / 4 + 8)};
  const int min_visible = part.visible(first_row);
  int first_seen[2] = {0, 0}, max_first_seen = 0;
  if constexpr (TokenPart::kWindowed) {
    first_seen[0] = part.first_seen(first_row + lane / 4);
    first_seen[1] = part.first_seen(first_row + lane / 4 + 8);
    max_first_seen = part.first_seen(first_row + kRows - 1);
  }
  for (int half = 0; tile < end; tile += kWarps<D>, half ^= 1) {
    wait_for_copies<1>();
    __syncwarp();
    const unsigned keys = ring + half * 2 * kTileBytes<D>;
    const bool masked =
        (tile + 1) * kTile > min_visible || (TokenPart::kWindowed && tile * kTile < max_first_seen);
    rows.template add<TokenPart::kWindowed>(keys, keys + kTileBytes<D>, tile * kTile, masked,
                                            visible, first_seen);
    __syncwarp();
    copy_tile(tile + 2 * kWarps<D>, half);
  }
  rows.finish(part.p.value_scale(part.kv_head));
  wait_for_copies<0>();
  __syncthreads();  // the partial results overwrite the tiles

  auto* parts = reinterpret_cast<WarpPartial<D>*>(shared);
  WarpPartial<D>& combined = parts[kWarps<D>];
  store_part(rows, kRows, lane, parts[warp]);
  __syncthreads();
  combine_warps(parts, combined);
  synchronize_cluster(blocks);
  combine_blocks(part, first_row, combined, rank, blocks);
  if (blocks > 1) synchronize_cluster(blocks);  // no block may exit while others read its result
}

// How many blocks share the tokens of a sequence: as many as the GPU can run at once, as long as
// each has enough to do.
inline int cluster_size(long long groups, long long max_kv_length) {
  if (!has_clusters()) return 1;
  const int processors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  int blocks = 1;
  while (blocks < kMaxCluster && groups * blocks < processors &&
         max_kv_length >= 2 * blocks * kMinBlockTokens) {
    blocks *= 2;
  }
  return blocks;
}

// The shape of a kernel's blocks.
struct BlockShape {
  int threads, shared_bytes;
};

// Launches a kernel whose blocks have 16 packed rows each and, in clusters, share their tokens.
// `rows`: max. query rows of a sequence.
template <typename T, typename... Params, typename... Args>
void launch_blocks(void (*kernel)(const AttentionParams<T>, Params...), const BlockShape& block,
                   const AttentionParams<T>& p, long long rows, long long sequences,
                   long long max_tokens, cudaStream_t stream, const Args&... args) {
  allow_shared_memory(kernel, block.shared_bytes, "preparing attention");
  const long long tiles = (rows * p.max_group_heads() + kRows - 1) / kRows;
  const int cluster = cluster_size(tiles * p.kv_heads() * sequences, max_tokens);
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(tiles * cluster), p.kv_heads(), static_cast<unsigned>(sequences));
  config.blockDim = dim3(block.threads);
  config.dynamicSmemBytes = block.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p, args...), "launching attention");
}

// Launches a kernel that calls attend<T, D>().
template <int D, typename T, typename... Params, typename... Args>
void launch(void (*kernel)(const AttentionParams<T>, Params...), const AttentionParams<T>& p,
            long long rows, long long sequences, long long max_tokens, cudaStream_t stream,
            const Args&... args) {
  launch_blocks(kernel, BlockShape{kWarps<D> * 32, kSharedBytes<D>}, p, rows, sequences, max_tokens,
                stream, args...);
}

}  // namespace nvllm::kernels::cuda::decode
