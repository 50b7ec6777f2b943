// The block mask of XAttention on the GPU: the scores of strided rows and tokens on Ampere and
// later, and the launcher.
//
// Strided scores are a GEMM of depth kStride head_dim: strided row i consists of the elements of
// its rows in descending order, strided token j of those of its keys in ascending order. A block
// computes 128 x 128 of them with mma.sync, with asynchronous copies in kStages stages (on Hopper
// see ../sm90/block_mask.cu), and writes one base-2 log-sum-exp per strided row and tile of kTile
// strided tokens. A second kernel (block_mask.cuh) selects tiles by these. float32 has a plain
// kernel.
#include "kernels/attention/sm80/mma_rows.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/sm80/block_mask.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kStrides = 128;  // strided rows, and strided tokens, of a block
constexpr int kThreads = 256;
constexpr int kStages = 3;
constexpr int kOperandBytes = kStrides * kDepth * 2;
constexpr int kSharedBytes = kStages * 2 * kOperandBytes;
constexpr int kWarpRows = 64, kWarpTokens = 32;  // of a warp: 2 x 4 warps

// The copies of a thread for a stage: a chunk of each of four strided rows and four strided tokens.
template <typename T>
class StageCopy {
 public:
  __device__ __forceinline__ StageCopy(const TileParams<T>& p, int head, int first_row,
                                       int first_token)
      : p_(p), head_(head), first_row_(first_row), first_token_(first_token) {
    // If a strided token lies in one block, its keys need one lookup.
    together_ = p.table == nullptr || p.block_size % kStep == 0;
#pragma unroll
    for (int n = 0; n < kRowsOfThread; ++n) {
      const int token = kStep * (first_token + row(n));
      keys_[n] = together_ && token < p.tokens ? p.key(token, head) : p.keys;
    }
  }

  // Copies elements [kDepth step, kDepth (step + 1)) of all strided rows and tokens.
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

// Adds a stage's part to the warp's scores.
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

// Stores the log-sum-exps of the warp's rows over its tiles of kTile strided tokens.
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
      for (int n = 0; n < kWarpTokens / kTile; ++n) {
        constexpr int kValues = kTile / 4;  // of a thread
        float value[kValues], row_max = -INFINITY, sum = 0;
#pragma unroll
        for (int c = 0; c < kValues; ++c) {
          const int j = first_token + n * kTile + c / 2 * 8 + 2 * (lane % 4) + c % 2;
          const float score = scores[m][n * (kTile / 8) + c / 2][2 * half + c % 2] * p.scale;
          value[c] = j < seen ? score : -INFINITY;
          row_max = fmaxf(row_max, value[c]);
        }
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 1));
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 2));
        const float reference = reference_of(row_max);
#pragma unroll
        for (int c = 0; c < kValues; ++c) sum += exp2f(value[c] - reference);
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

// Grid: x is strided rows of all heads, y strided tokens, so that concurrent blocks share keys.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) score_tiles_kernel(const TileParams<T> p) {
  pdl_begin();
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
    __syncthreads();  // the stage has arrived, and all warps are done with the previous one
    const int next = step + kStages - 1;
    if (next < steps) copies.copy(next, rows_tile(next % kStages), tokens_tile(next % kStages));
    commit_copies();
    const int stage = step % kStages;
    multiply_stage<T>(rows_tile(stage), tokens_tile(stage), row, token, lane, scores);
  }
  store_sums(p, head, first_row + row, first_token + token, lane, scores);
}

// float32, which tensor cores would round: one thread per strided row and tile.
template <typename T>
__global__ void __launch_bounds__(kThreads) score_tiles_plain_kernel(const TileParams<T> p) {
  pdl_begin();
  const int tile = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int i = blockIdx.y, head = blockIdx.z;
  if (tile >= p.token_tiles) return;
  const int seen = p.seen(i);
  float row_max = -INFINITY, sum = 0;
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
    const float new_max = fmaxf(row_max, score);
    sum = sum * exp2f(row_max - new_max) + exp2f(score - new_max);
    row_max = new_max;
  }
  p.sums_of(head, i)[tile] = sum == 0 ? -INFINITY : row_max + log2f(sum);
}

template <typename T>
void score(const BlockMask& args, const TileParams<T>& p, cudaStream_t stream) {
  const int strides = (p.rows + kStep - 1) / kStep;
  if constexpr (sizeof(T) == 4) {
    const dim3 grid(static_cast<unsigned>((p.token_tiles + kThreads - 1) / kThreads),
                    static_cast<unsigned>(strides), static_cast<unsigned>(p.heads));
    launch_with_pdl("launching block_mask", score_tiles_plain_kernel<T>, grid, kThreads, stream, p);
  } else {
    if (score_tiles_sm90(args, p, stream)) return;
    const auto kernel = score_tiles_kernel<T>;
    allow_shared_memory(kernel, kSharedBytes, "preparing block_mask");
    const int strided_tokens = (p.tokens + kStep - 1) / kStep;
    const dim3 grid(static_cast<unsigned>((strides + kStrides - 1) / kStrides * p.heads),
                    static_cast<unsigned>((strided_tokens + kStrides - 1) / kStrides));
    kernel<<<grid, kThreads, kSharedBytes, stream>>>(p);
    nvllm::cuda::check(cudaGetLastError(), "launching block_mask");
  }
}

}  // namespace

void block_mask(const BlockMask& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  with_element_type(args.prompt.q.dtype, [&]<typename T>(T) {
    const TileParams<T> p(args);
    score(args, p, native);
    top_p_tiles(p, native);
  });
}

}  // namespace nvllm::kernels::cuda
