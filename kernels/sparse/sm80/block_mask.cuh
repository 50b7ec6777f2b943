// The parameters of the block mask kernels, and the kernel that selects tiles by the log-sum-exps
// of the first one (block_mask.cu, ../sm90/block_mask.cu).
//
// A block of the selection kernel has a tile of rows and a head. It computes scores of tiles from
// the log-sum-exps of its strided rows, then finds, by a search over the bits of the score, the
// highest cut at which the tiles above it reach the threshold (top-p), and writes the kept tiles in
// ascending order.
#pragma once

#include "kernels/attention/sm80/attention_params.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/sparse/block_mask.h"
#include "kernels/sparse/sm80/prompt_params.cuh"
#include "kernels/sparse/sm80/top_k.cuh"

namespace nvllm::kernels::cuda {

inline constexpr int kDepth = 64;  // elements of a strided row in a stage
inline constexpr int kTile = static_cast<int>(kTileStrides);
inline constexpr int kStep = static_cast<int>(kStride);

template <typename T>
struct TileParams : PromptParams<T> {
  float* sums;  // [heads][row_tiles * kTile][token_tiles]
  int *tiles, *counts;
  int padded_dim;  // head_dim, padded to a multiple of kDepth
  int row_tiles, token_tiles, capacity, first_dense_tile;
  float scale, threshold;  // scale: for exponents of 2

  explicit TileParams(const BlockMask& args)
      : PromptParams<T>(args.prompt),
        sums(args.workspace.as<float>()),
        tiles(args.tiles.as<int>()),
        counts(args.tile_counts.as<int>()),
        padded_dim((this->head_dim + kDepth - 1) / kDepth * kDepth),
        row_tiles(static_cast<int>(args.row_tiles())),
        token_tiles(static_cast<int>(args.token_tiles())),
        capacity(static_cast<int>(args.tiles.shape[2])),
        first_dense_tile(static_cast<int>(args.first_dense_tile())),
        scale(args.prompt.scale / kStride * kLog2E),
        threshold(args.threshold) {}

  __device__ __forceinline__ int strides() const { return (this->rows + kStep - 1) / kStep; }
  // How many strided tokens a strided row attends to.
  __device__ __forceinline__ int seen(int i) const {
    return (this->first_position + min(kStep * (i + 1), this->rows) - 1) / kStep + 1;
  }
  __device__ __forceinline__ float* sums_of(int head, int i) const {
    return sums + (static_cast<long long>(head) * row_tiles * kTile + i) * token_tiles;
  }
};

// The scores of bfloat16 and float16 on Hopper. Returns false, with nothing enqueued, on another
// device or without memory for gathered keys.
template <typename T>
bool score_tiles_sm90(const BlockMask& args, const TileParams<T>& params, cudaStream_t stream);

inline constexpr int kSelectWarps = 4, kSelectThreads = kSelectWarps * 32;

// Scores in shared memory are padded with zeros to a multiple of this.
inline constexpr int kScoresAtOnce = 128;

// A tile of rows, and the scores of the tiles that it attends to.
struct TileRow {
  float* scores;  // in shared memory; 0 for those that are always kept
  int reach, diagonal;

  __device__ __forceinline__ bool always(int tile) const { return tile == 0 || tile >= diagonal; }
};

__device__ __forceinline__ float add_warp(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// The log-sum-exp of a strided row, computed by a warp; all lanes get it.
__device__ __forceinline__ float sum_row(const float* sums, int count, int lane) {
  constexpr int kAtOnce = 8;
  float row_max = -INFINITY, sum = 0;
  for (int first = lane; first < count; first += kAtOnce * 32) {
    float value[kAtOnce], new_max = row_max;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      value[n] = first + n * 32 < count ? sums[first + n * 32] : -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) new_max = fmaxf(new_max, value[n]);
    const float reference = reference_of(new_max);
    sum *= power_of_2(row_max - reference);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) sum += power_of_2(value[n] - reference);
    row_max = new_max;
  }
  float of_all = row_max;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    of_all = fmaxf(of_all, __shfl_xor_sync(~0u, of_all, step));
  }
  const float reference = reference_of(of_all);
  return reference + log2f(add_warp(sum * power_of_2(row_max - reference)));
}

// The sum of the scores of the tiles that are always kept, and of all tiles.
struct Covered {
  float always, all;
};

template <typename T>
__device__ __forceinline__ Covered score_row(const TileParams<T>& p, const TileRow& row, int head,
                                             float (&row_sums)[kTile],
                                             float (&parts)[2][kSelectWarps]) {
  const int first = static_cast<int>(blockIdx.x) * kTile, strides = min(kTile, p.strides() - first);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = warp; i < strides; i += kSelectWarps) {
    const float sum = sum_row(p.sums_of(head, first + i), row.reach, lane);
    if (lane == 0) row_sums[i] = sum;
  }
  __syncthreads();
  float always = 0, others = 0;
  const int filled = (row.reach + kScoresAtOnce - 1) / kScoresAtOnce * kScoresAtOnce;
  for (int tile = threadIdx.x; tile < filled; tile += kSelectThreads) {
    float score = 0;
    if (tile < row.reach) {
      const float* sums = p.sums_of(head, first) + tile;
#pragma unroll
      for (int i = 0; i < kTile; ++i) {
        if (i < strides) score += power_of_2(sums[i * p.token_tiles] - row_sums[i]);
      }
    }
    (row.always(tile) ? always : others) += score;
    row.scores[tile] = row.always(tile) ? 0 : score;
  }
  always = add_warp(always);
  others = add_warp(others);
  if (lane == 0) {
    parts[0][warp] = always;
    parts[1][warp] = others;
  }
  __syncthreads();
  static_assert(kSelectWarps <= 32);
  always = add_warp(lane < kSelectWarps ? parts[0][lane] : 0);
  return {always, always + add_warp(lane < kSelectWarps ? parts[1][lane] : 0)};
}

// The sum and the number of the scores that are at least a given one, summed in a fixed order.
struct TailSum {
  float sum;
  int count;
};

// Computed by a warp for a score given by its bits; all lanes get it.
__device__ __forceinline__ TailSum tail_sum(const TileRow& row, unsigned bits, int lane) {
  TailSum tail{};
#pragma unroll 2
  for (int tile = lane * 4; tile < row.reach; tile += kScoresAtOnce) {
    const float4 four = *reinterpret_cast<const float4*>(row.scores + tile);
    for (const float score : {four.x, four.y, four.z, four.w}) {
      if (__float_as_uint(score) < bits) continue;
      tail.sum += score;
      ++tail.count;
    }
  }
  return {add_warp(tail.sum), __reduce_add_sync(~0u, tail.count)};
}

// The result of the search: tiles above the score with these bits are kept, and `ties` of those
// with exactly this score.
struct Cut {
  unsigned bits;
  int ties;
};

inline constexpr unsigned kInfinity = 0x7f800000u;  // bits of a score that no tile has

// The highest score at which the tiles cover `wanted`, which all tiles together do and no single
// tile does. Scores are not negative, so their bits have the same order. Each warp tries one score
// per round, which leaves a fifth of the interval, until a single tile or equal tiles are left. All
// threads call it together.
__device__ __forceinline__ Cut find_cut(const TileRow& row, float wanted,
                                        TailSum (&tried)[kSelectWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned low = 0, high = kInfinity;       // enough; too little
  int above_low = 1 << 30, above_high = 0;  // counts of scores above; not counted yet
  while (high - low > 1) {
    const unsigned step = (high - low + kSelectWarps) / (kSelectWarps + 1);
    const TailSum tail = tail_sum(row, low + step * (warp + 1), lane);
    if (lane == 0) tried[warp] = tail;
    __syncthreads();
    unsigned steps = 0;
#pragma unroll
    for (int w = 0; w < kSelectWarps; ++w) {
      const bool enough = tried[w].sum >= wanted;  // lower scores cover more
      steps += enough;
      (enough ? above_low : above_high) = enough ? tried[w].count : max(above_high, tried[w].count);
    }
    __syncthreads();
    low += steps * step;
    high = min(high, low + step);
    if (above_low - above_high == 1) return {low - 1, 0};
  }
  const float score = __uint_as_float(low);
  const float missing = wanted - tail_sum(row, low + 1, lane).sum;
  if (!(score > 0)) return {low, row.reach};
  return {low, static_cast<int>(fminf(ceilf(missing / score), 1e9f))};
}

template <typename T>
__global__ void __launch_bounds__(kSelectThreads, 12) top_p_tiles_kernel(const TileParams<T> p) {
  pdl_begin();
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int warp_counts[2][kSelectWarps];
  __shared__ float parts[2][kSelectWarps], row_sums[kTile];
  __shared__ TailSum tried[kSelectWarps];
  constexpr int kRows = static_cast<int>(kMaskTile);
  const int row_tile = blockIdx.x, head = blockIdx.y;
  const int first = p.first_position + row_tile * kRows;
  const int last = p.first_position + min((row_tile + 1) * kRows, p.rows) - 1;
  const TileRow row{reinterpret_cast<float*>(memory), last / kRows + 1, first / kRows};
  const Covered covered = score_row(p, row, head, row_sums, parts);

  const float wanted = p.threshold * covered.all - covered.always;
  Cut cut{0, row.reach};  // all
  if (p.threshold < 1 && row_tile < p.first_dense_tile)
    cut = wanted <= 0 ? Cut{kInfinity, 0} : find_cut(row, wanted, tried);
  const long long at = static_cast<long long>(row_tile) * p.heads + head;
  int* kept = p.tiles + at * p.capacity;
  const int count = write_selected(
      warp_counts, row.reach, cut.ties,
      [&](int tile) { return row.always(tile) || __float_as_uint(row.scores[tile]) > cut.bits; },
      [&](int tile) { return __float_as_uint(row.scores[tile]) == cut.bits; },
      [&](int position, int tile) { kept[position] = tile; });
  if (threadIdx.x == 0) p.counts[at] = count;
}

template <typename T>
void top_p_tiles(const TileParams<T>& p, cudaStream_t stream) {
  const auto kernel = top_p_tiles_kernel<T>;
  const int filled = (p.token_tiles + kScoresAtOnce - 1) / kScoresAtOnce * kScoresAtOnce;
  const int bytes = filled * static_cast<int>(sizeof(float));
  allow_shared_memory(
      kernel, bytes,
      "preparing block_mask (a prompt may have as many tiles as fit into shared memory)");
  const dim3 grid(static_cast<unsigned>(p.row_tiles), static_cast<unsigned>(p.heads));
  launch_with_pdl("launching block_mask", kernel,
                  LaunchShape{grid, kSelectThreads, static_cast<std::size_t>(bytes)}, stream, p);
}

}  // namespace nvllm::kernels::cuda
