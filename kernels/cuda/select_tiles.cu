// XAttention's choice on the GPU. Strided scores are a product of matrices: strided row i is the 8 head_dim
// elements of its rows, in descending order of rows, strided token j those of its keys in ascending order. A
// block computes 128 x 128 of them on tensor cores (mma.sync, Ampere and later) and leaves of them one
// log-sum-exp (in base 2) for each strided row and tile of 16 strided tokens. Then a block for each tile of rows
// and head makes them scores of tiles, finds the score down to which tiles are kept, and writes them down.
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/select_tiles.h"
#include "kernels/cuda/take_highest.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kStrides = 128;  // strided rows, and strided tokens, of a block
constexpr int kThreads = 256;
constexpr int kDepth = 64;  // elements of a strided row that are in shared memory at once: a stage
constexpr int kStages = 3;
constexpr int kOperandBytes = kStrides * kDepth * 2;
constexpr int kSharedBytes = kStages * 2 * kOperandBytes;
constexpr int kWarpRows = 64, kWarpTokens = 32;  // of a warp: 2 x 4 warps
constexpr int kTile = static_cast<int>(kTileStrides);
constexpr int kStep = static_cast<int>(kStride);

template <typename T>
struct TileParams {
  const T* q;
  const T* keys;
  const int* table;
  float* sums;  // [heads][row_tiles * 16][token_tiles]
  int *tiles, *counts;
  long long q_row, block_stride, token_stride, head_stride;
  int block_size, heads, group, first_head, head_dim, padded_dim;  // padded to a multiple of kDepth
  int rows, tokens, first_position, row_tiles, token_tiles, capacity;
  float scale, threshold;  // scale: of exponents of 2

  explicit TileParams(const SelectTiles& args)
      : q(args.prompt.q.as<T>()),
        keys(args.prompt.kv.keys.as<T>()),
        table(args.prompt.kv.block_table.as<int>()),
        sums(args.workspace.as<float>()),
        tiles(args.tiles.as<int>()),
        counts(args.tile_counts.as<int>()),
        q_row(args.prompt.q.stride[0]),
        block_stride(args.prompt.kv.keys.stride[0]),
        token_stride(args.prompt.kv.keys.stride[1]),
        head_stride(args.prompt.kv.keys.stride[2]),
        block_size(static_cast<int>(args.prompt.kv.block_size())),
        heads(static_cast<int>(args.prompt.heads())),
        group(static_cast<int>(args.prompt.group)),
        first_head(static_cast<int>(args.prompt.first_head)),
        head_dim(static_cast<int>(args.prompt.head_dim())),
        padded_dim((head_dim + kDepth - 1) / kDepth * kDepth),
        rows(static_cast<int>(args.prompt.rows())),
        tokens(static_cast<int>(args.prompt.tokens())),
        first_position(static_cast<int>(args.prompt.first_position)),
        row_tiles(static_cast<int>(args.row_tiles())),
        token_tiles(static_cast<int>(args.token_tiles())),
        capacity(static_cast<int>(args.tiles.shape[2])),
        scale(args.prompt.scale / kStride * kLog2E),
        threshold(args.threshold) {}

  __device__ __forceinline__ int strides() const { return (rows + kStep - 1) / kStep; }
  // Strided tokens that a strided row sees.
  __device__ __forceinline__ int seen(int i) const {
    return (first_position + min(kStep * (i + 1), rows) - 1) / kStep + 1;
  }
  __device__ __forceinline__ const T* key(int token, int head) const {
    const long long block = table == nullptr ? 0 : table[token / block_size];
    return keys + block * block_stride + token % block_size * token_stride +
           (first_head + head) / group * head_stride;
  }
  __device__ __forceinline__ float* sums_of(int head, int i) const {
    return sums + (static_cast<long long>(head) * row_tiles * kTile + i) * token_tiles;
  }
};

// What a thread copies of a stage: a chunk of each of four strided rows and four strided tokens.
template <typename T>
class StageCopy {
 public:
  __device__ __forceinline__ StageCopy(const TileParams<T>& p, int head, int first_row,
                                       int first_token)
      : p_(p), head_(head), first_row_(first_row), first_token_(first_token) {
    // Where a strided token lies in one block, its eight keys are found at once.
    together_ = p.table == nullptr || p.block_size % kStep == 0;
#pragma unroll
    for (int n = 0; n < kRowsOfThread; ++n) {
      const int token = kStep * (first_token + row(n));
      keys_[n] = together_ && token < p.tokens ? p.key(token, head) : p.keys;
    }
  }

  // Elements [kDepth step, kDepth (step + 1)) of all strided rows and tokens.
  __device__ __forceinline__ void copy(int step, unsigned rows_tile, unsigned tokens_tile) const {
    const int per_row = p_.padded_dim / kDepth;
    const int t = step / per_row, d = step % per_row * kDepth + chunk() * 8;
    const bool inside = d < p_.head_dim;
#pragma unroll
    for (int n = 0; n < kRowsOfThread; ++n) {
      const int query = kStep * (first_row_ + row(n)) + kStep - 1 - t;
      const bool has_row = inside && query < p_.rows;
      const T* from = has_row ? p_.q + query * p_.q_row + head_ * p_.head_dim + d : p_.q;
      copy_chunk(chunk_at<kDepth>(rows_tile, row(n), chunk()), from, has_row);
      const int token = kStep * (first_token_ + row(n)) + t;
      const bool has_token = inside && token < p_.tokens;
      const T* key = together_ ? keys_[n] + t * p_.token_stride : p_.keys;
      if (!together_ && has_token) key = p_.key(token, head_);
      copy_chunk(chunk_at<kDepth>(tokens_tile, row(n), chunk()), has_token ? key + d : p_.keys,
                 has_token);
    }
  }

 private:
  static constexpr int kChunks = kDepth / 8;
  static constexpr int kRowsOfThread = kStrides * kChunks / kThreads;

  __device__ __forceinline__ static int chunk() {
    return threadIdx.x % kChunks;
  }
  __device__ __forceinline__ static int row(int n) {
    return static_cast<int>(threadIdx.x) / kChunks + n * (kThreads / kChunks);
  }

  const TileParams<T>& p_;
  int head_, first_row_, first_token_;
  bool together_;
  const T* keys_[kRowsOfThread];
};

using Scores = float[kWarpRows / 16][kWarpTokens / 8][4];

// A stage's part of the warp's scores.
template <typename T>
__device__ __forceinline__ void multiply_stage(unsigned rows_tile, unsigned tokens_tile, int row,
                                               int token, int lane, Scores& scores) {
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    Quad a[kWarpRows / 16], b[kWarpTokens / 16];
#pragma unroll
    for (int m = 0; m < kWarpRows / 16; ++m) {
      a[m] = load_matrices<false>(
          chunk_at<kDepth>(rows_tile, row + m * 16 + lane % 16, step * 2 + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < kWarpTokens / 16; ++n) {
      b[n] = load_matrices<false>(chunk_at<kDepth>(
          tokens_tile, token + n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
    }
#pragma unroll
    for (int m = 0; m < kWarpRows / 16; ++m) {
#pragma unroll
      for (int n = 0; n < kWarpTokens / 16; ++n) {
        multiply_add<T>(scores[m][2 * n], a[m], b[n].word[0], b[n].word[1]);
        multiply_add<T>(scores[m][2 * n + 1], a[m], b[n].word[2], b[n].word[3]);
      }
    }
  }
}

// The log-sum-exps of the warp's rows over its tiles of 16 strided tokens.
template <typename T>
__device__ __forceinline__ void store_sums(const TileParams<T>& p, int head, int first_row,
                                           int first_token, int lane, const Scores& scores) {
#pragma unroll
  for (int m = 0; m < kWarpRows / 16; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first_row + m * 16 + lane / 4 + half * 8;
      const int seen = i < p.strides() ? p.seen(i) : 0;
#pragma unroll
      for (int n = 0; n < kWarpTokens / 16; ++n) {
        float value[4], highest = -INFINITY, sum = 0;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int j = first_token + n * 16 + c / 2 * 8 + 2 * (lane % 4) + c % 2;
          const float score = scores[m][2 * n + c / 2][2 * half + c % 2] * p.scale;
          value[c] = j < seen ? score : -INFINITY;
          highest = fmaxf(highest, value[c]);
        }
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
        const float reference = reference_of(highest);
#pragma unroll
        for (int c = 0; c < 4; ++c) sum += exp2f(value[c] - reference);
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int tile = first_token / kTile + n;
        if (lane % 4 == 0 && i < p.strides() && tile < p.token_tiles) {
          p.sums_of(head, i)[tile] = reference + log2f(sum);
        }
      }
    }
  }
}

// Blocks: x strided rows of all heads, y strided tokens, so that blocks that run together share keys.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) score_tiles_kernel(const TileParams<T> p) {
  begin_after_previous_kernel();
  extern __shared__ __align__(128) unsigned char memory[];
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int first_row = static_cast<int>(blockIdx.x) / p.heads * kStrides;
  const int first_token = static_cast<int>(blockIdx.y) * kStrides;
  if (first_token >= p.seen(min(first_row + kStrides, p.strides()) - 1)) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / 4 * kWarpRows, token = warp % 4 * kWarpTokens;
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const auto rows_tile = [&](int stage) { return base + stage * 2 * kOperandBytes; };
  const auto tokens_tile = [&](int stage) { return rows_tile(stage) + kOperandBytes; };

  const StageCopy<T> copies(p, head, first_row, first_token);
  const int steps = kStep * p.padded_dim / kDepth;  // at least 8, so more than stages
  for (int step = 0; step < kStages - 1; ++step) {
    copies.copy(step, rows_tile(step), tokens_tile(step));
    commit_copies();
  }
  Scores scores = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage is there, and nobody is still at the one before it
    const int next = step + kStages - 1;
    if (next < steps) copies.copy(next, rows_tile(next % kStages), tokens_tile(next % kStages));
    commit_copies();
    const int stage = step % kStages;
    multiply_stage<T>(rows_tile(stage), tokens_tile(stage), row, token, lane, scores);
  }
  store_sums(p, head, first_row + row, first_token + token, lane, scores);
}

// float32, which no tensor core takes exactly: a thread for each strided row and tile.
template <typename T>
__global__ void __launch_bounds__(kThreads) score_tiles_plain_kernel(const TileParams<T> p) {
  begin_after_previous_kernel();
  const int tile = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int i = blockIdx.y, head = blockIdx.z;
  if (tile >= p.token_tiles) return;
  const int seen = p.seen(i);
  float highest = -INFINITY, sum = 0;
  for (int j = tile * kTile; j < min((tile + 1) * kTile, seen); ++j) {
    float score = 0;
    for (int t = 0; t < kStep; ++t) {
      const int row = kStep * i + kStep - 1 - t, token = kStep * j + t;
      if (row >= p.rows || token >= p.tokens) continue;
      const T* q = p.q + row * p.q_row + head * p.head_dim;
      const T* k = p.key(token, head);
      for (int d = 0; d < p.head_dim; ++d) score = fmaf(widen(q[d]), widen(k[d]), score);
    }
    score *= p.scale;
    const float higher = fmaxf(highest, score);
    sum = sum * exp2f(highest - higher) + exp2f(score - higher);
    highest = higher;
  }
  p.sums_of(head, i)[tile] = sum == 0 ? -INFINITY : highest + log2f(sum);
}

// The sum of a value of each thread, in a fixed order; all threads get it.
__device__ __forceinline__ float add_block(float value, float (&parts)[kTakeWarps]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kTakeWarps; ++w) sum += parts[w];
  return sum;
}

// A tile of rows' choice among the tiles that it sees.
struct TileRow {
  float* scores;  // in shared memory
  int reach, diagonal;

  __device__ __forceinline__ bool always(int tile) const { return tile == 0 || tile >= diagonal; }
  // The sum of the scores of tiles that are always kept, or not below a score given by its bits.
  __device__ __forceinline__ float covered(unsigned bits, float (&parts)[kTakeWarps]) const {
    float sum = 0;
    for (int tile = threadIdx.x; tile < reach; tile += kTakeThreads) {
      if (always(tile) || __float_as_uint(scores[tile]) >= bits) sum += scores[tile];
    }
    return add_block(sum, parts);
  }
};

template <typename T>
__device__ __forceinline__ void score_row(const TileParams<T>& p, const TileRow& row, int head,
                                          float (&row_sums)[kTile]) {
  const int first = static_cast<int>(blockIdx.x) * kTile, strides = min(kTile, p.strides() - first);
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < strides; i += kTakeWarps) {
    const float* sums = p.sums_of(head, first + i);
    float highest = -INFINITY, sum = 0;
    for (int tile = lane; tile < row.reach; tile += 32) highest = fmaxf(highest, sums[tile]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
    }
    const float reference = reference_of(highest);
    for (int tile = lane; tile < row.reach; tile += 32) sum += exp2f(sums[tile] - reference);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) row_sums[i] = reference + log2f(sum);
  }
  __syncthreads();
  for (int tile = threadIdx.x; tile < row.reach; tile += kTakeThreads) {
    float score = 0;
    for (int i = 0; i < strides; ++i)
      score += exp2f(p.sums_of(head, first + i)[tile] - row_sums[i]);
    row.scores[tile] = score;
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kTakeThreads) keep_tiles_kernel(const TileParams<T> p) {
  begin_after_previous_kernel();
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ TakeShared shared;
  __shared__ float parts[kTakeWarps], row_sums[kTile];
  constexpr int kRows = static_cast<int>(kSelectTile);
  const int row_tile = blockIdx.x, head = blockIdx.y;
  const int first = p.first_position + row_tile * kRows;
  const int last = p.first_position + min((row_tile + 1) * kRows, p.rows) - 1;
  const TileRow row{reinterpret_cast<float*>(memory), last / kRows + 1, first / kRows};
  score_row(p, row, head, row_sums);

  // The highest score down to which tiles cover enough; scores are not negative, so their bits ascend as they
  // do. No score is above `nothing`: it stands for the tiles that are always kept, alone.
  constexpr unsigned nothing = 0x7f800000u;
  const float wanted = p.threshold * row.covered(0, parts);
  unsigned least = 0;
  int ties = row.reach;
  if (p.threshold < 1) {
    if (row.covered(nothing, parts) >= wanted) {
      least = nothing;
      ties = 0;
    } else {
      unsigned high = nothing;
      while (least + 1 < high) {
        const unsigned middle = least + (high - least) / 2;
        if (row.covered(middle, parts) >= wanted) {
          least = middle;
        } else {
          high = middle;
        }
      }
      const float score = __uint_as_float(least);
      const float missing = wanted - row.covered(least + 1, parts);
      if (score > 0) ties = static_cast<int>(fminf(ceilf(missing / score), 1e9f));
    }
  }
  const long long at = static_cast<long long>(row_tile) * p.heads + head;
  int* kept = p.tiles + at * p.capacity;
  const int count = write_chosen(
      shared, row.reach, ties,
      [&](int tile) { return row.always(tile) || __float_as_uint(row.scores[tile]) > least; },
      [&](int tile) { return __float_as_uint(row.scores[tile]) == least; },
      [&](int place, int tile) { kept[place] = tile; });
  if (threadIdx.x == 0) p.counts[at] = count;
}

template <typename T>
void score(const TileParams<T>& p, cudaStream_t stream) {
  const int strides = (p.rows + kStep - 1) / kStep;
  if constexpr (sizeof(T) == 4) {
    const dim3 grid(static_cast<unsigned>((p.token_tiles + kThreads - 1) / kThreads),
                    static_cast<unsigned>(strides), static_cast<unsigned>(p.heads));
    launch_early("launching select_tiles", score_tiles_plain_kernel<T>, grid, kThreads, stream, p);
  } else {
    const auto kernel = score_tiles_kernel<T>;
    nvllm::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "preparing select_tiles");
    const int strided_tokens = (p.tokens + kStep - 1) / kStep;
    const dim3 grid(static_cast<unsigned>((strides + kStrides - 1) / kStrides * p.heads),
                    static_cast<unsigned>((strided_tokens + kStrides - 1) / kStrides));
    kernel<<<grid, kThreads, kSharedBytes, stream>>>(p);
    nvllm::cuda::check(cudaGetLastError(), "launching select_tiles");
  }
}

}  // namespace

void select_tiles(const SelectTiles& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  with_element_type(args.prompt.q.dtype, [&]<typename T>(T) {
    const TileParams<T> p(args);
    score(p, native);
    const auto kernel = keep_tiles_kernel<T>;
    const int bytes = p.token_tiles * static_cast<int>(sizeof(float));
    nvllm::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "preparing select_tiles (a prompt may have as many tiles as fit into shared memory)");
    const dim3 grid(static_cast<unsigned>(p.row_tiles), static_cast<unsigned>(p.heads));
    kernel<<<grid, kTakeThreads, bytes, native>>>(p);
    nvllm::cuda::check(cudaGetLastError(), "launching select_tiles");
  });
}

}  // namespace nvllm::kernels::cuda
