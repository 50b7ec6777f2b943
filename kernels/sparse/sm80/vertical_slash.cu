// Vertical-slash selection of MInference on the GPU.
//
// The estimation rows pass over the keys twice, 64 tokens per block: for the rows' log-sum-exps,
// and for the sums of weights by column and by diagonal, with mma.sync for the 16-bit types. The
// block of a tile writes its sums, which are added up in a fixed order. Then one block per head
// selects the top k columns, another one its diagonals (top_k.cuh). Further kernels merge offsets
// into bands and list the ranges and columns of each block of rows (vertical_slash.h).
#include <algorithm>

#include "kernels/attention/sm80/mma_rows.cuh"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/sparse/backends.h"
#include "kernels/sparse/sm80/prompt_params.cuh"
#include "kernels/sparse/sm80/top_k.cuh"
#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kTile = 64;  // estimation rows, and tokens
constexpr int kThreads = 128;
constexpr int kDiagonals = 2 * kTile;  // of a tile; one of them is empty
constexpr int kRowFloats = kTile + 1;  // in shared memory, so that columns lie in different banks
constexpr int kScoreBytes = kTile * kRowFloats * static_cast<int>(sizeof(float));

template <typename T>
struct VerticalSlashParams : PromptParams<T> {
  int estimation_rows, tiles;
  float scale;  // for exponents of 2
  // [heads][tiles * 64], [heads][tiles][128], [heads][tiles][64], [heads][64]
  float *by_token, *by_diagonal, *tile_sums, *row_sums;

  explicit VerticalSlashParams(const VerticalSlash& args)
      : PromptParams<T>(args.prompt),
        estimation_rows(static_cast<int>(args.estimation_rows())),
        tiles((this->tokens + kTile - 1) / kTile),
        scale(args.prompt.scale * kLog2E) {
    const long long padded = static_cast<long long>(this->heads) * tiles * kTile;
    by_token = args.workspace.as<float>();
    by_diagonal = by_token + padded;
    tile_sums = by_diagonal + 2 * padded;
    row_sums = tile_sums + padded;
  }

  // The query of an estimation row.
  __device__ __forceinline__ const T* query(int i, int head) const {
    return this->q + (this->rows - estimation_rows + i) * this->q_row + head * this->head_dim;
  }
  // Whether estimation row i attends to a token.
  __device__ __forceinline__ bool sees(int i, int token) const {
    return i < estimation_rows && token <= this->tokens - estimation_rows + i;
  }
};

// Bytes of shared memory for queries and keys, and for the scores that replace them.
template <typename T, int D>
inline constexpr int kTileBytes = std::max(kScoreBytes, sizeof(T) == 2 ? 2 * kTile * D * 2 : 0);

// The scores of all estimation rows and the tile's tokens, in shared memory; -infinity where a row
// does not attend to a token.
template <typename T, int D>
__device__ __forceinline__ void score_tile(const VerticalSlashParams<T>& p, int head, int first,
                                           float* scores) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  if constexpr (sizeof(T) == 2) {
    constexpr int kChunks = D / 8;
    const unsigned queries = static_cast<unsigned>(__cvta_generic_to_shared(scores));
    const unsigned keys = queries + kTile * D * 2;
    for (int at = thread; at < kTile * kChunks; at += kThreads) {
      const int row = at / kChunks, chunk = at % kChunks;
      const bool inside = chunk * 8 < p.head_dim;
      const bool has_row = inside && row < p.estimation_rows,
                 has_token = inside && first + row < p.tokens;
      const T* q = has_row ? p.query(row, head) + chunk * 8 : p.q;
      const T* k = has_token ? p.key(first + row, head) + chunk * 8 : p.keys;
      copy_chunk(chunk_at<D>(queries, row, chunk), q, has_row);
      copy_chunk(chunk_at<D>(keys, row, chunk), k, has_token);
    }
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    float sums[kTile / 8][4] = {};
    const int token = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      const Quad q =
          load_matrices<false>(chunk_at<D>(queries, warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < kTile / 8; n += 2) {
        const Quad k =
            load_matrices<false>(chunk_at<D>(keys, n * 8 + token, step * 2 + lane / 8 % 2));
        multiply_add<T>(sums[n], q, k.word[0], k.word[1]);
        multiply_add<T>(sums[n + 1], q, k.word[2], k.word[3]);
      }
    }
    __syncthreads();  // all threads are done with queries and keys
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = warp * 16 + lane / 4 + c / 2 * 8, j = n * 8 + 2 * (lane % 4) + c % 2;
        scores[i * kRowFloats + j] = p.sees(i, first + j) ? sums[n][c] * p.scale : -INFINITY;
      }
    }
  } else {
    for (int at = thread; at < kTile * kTile; at += kThreads) {
      const int i = at / kTile, j = at % kTile;
      float sum = -INFINITY;
      if (p.sees(i, first + j)) {
        const T* q = p.query(i, head);
        const T* k = p.key(first + j, head);
        sum = 0;
        for (int d = 0; d < p.head_dim; ++d) sum = fmaf(widen(q[d]), widen(k[d]), sum);
        sum *= p.scale;
      }
      scores[i * kRowFloats + j] = sum;
    }
  }
  __syncthreads();
}

// The tile's log-sum-exp (in base 2) of each estimation row.
template <typename T, int D>
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(const VerticalSlashParams<T> p) {
  pdl_begin();
  extern __shared__ __align__(128) unsigned char memory[];
  auto* const scores = reinterpret_cast<float*>(memory);
  const int tile = blockIdx.x, head = blockIdx.y;
  score_tile<T, D>(p, head, tile * kTile, scores);
  const int i = threadIdx.x / 2, half = threadIdx.x % 2 * (kTile / 2);
  const float* row = scores + i * kRowFloats + half;
  float row_max = -INFINITY, sum = 0;
  for (int j = 0; j < kTile / 2; ++j) row_max = fmaxf(row_max, row[j]);
  row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 1));
  const float reference = row_max == -INFINITY ? 0.0f : row_max;
  for (int j = 0; j < kTile / 2; ++j) sum += exp2f(row[j] - reference);
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (half == 0) {
    p.tile_sums[(static_cast<long long>(head) * p.tiles + tile) * kTile + i] = row_max + log2f(sum);
  }
}

// One block per head: the log-sum-exps of the rows over all tiles, eight threads per row.
template <typename T>
__global__ void __launch_bounds__(kTile * 8) add_rows_kernel(const VerticalSlashParams<T> p) {
  pdl_begin();
  __shared__ float parts[8][kTile];
  const int i = threadIdx.x % kTile, part = threadIdx.x / kTile;
  const float* sums = p.tile_sums + static_cast<long long>(blockIdx.x) * p.tiles * kTile + i;
  float row_max = -INFINITY, sum = 0;
  for (int tile = part; tile < p.tiles; tile += 8) row_max = fmaxf(row_max, sums[tile * kTile]);
  parts[part][i] = row_max;
  __syncthreads();
  for (int other = 0; other < 8; ++other) row_max = fmaxf(row_max, parts[other][i]);
  const float reference = row_max == -INFINITY ? 0.0f : row_max;
  for (int tile = part; tile < p.tiles; tile += 8) sum += exp2f(sums[tile * kTile] - reference);
  __syncthreads();
  parts[part][i] = sum;
  __syncthreads();
  if (part > 0) return;
  sum = 0;
  for (int other = 0; other < 8; ++other) sum += parts[other][i];
  p.row_sums[blockIdx.x * kTile + i] = reference + log2f(sum);
}

// The weights of the tile, summed by column and by diagonal: diagonal x has row i and token j with
// i - j + 63 = x.
template <typename T, int D>
__global__ void __launch_bounds__(kThreads) sum_lines_kernel(const VerticalSlashParams<T> p) {
  pdl_begin();
  extern __shared__ __align__(128) unsigned char memory[];
  auto* const weights = reinterpret_cast<float*>(memory);
  const int tile = blockIdx.x, head = blockIdx.y;
  score_tile<T, D>(p, head, tile * kTile, weights);
  for (int at = threadIdx.x; at < kTile * kTile; at += kThreads) {
    const int i = at / kTile;
    float& weight = weights[i * kRowFloats + at % kTile];
    weight = i < p.estimation_rows ? exp2f(weight - p.row_sums[head * kTile + i]) : 0.0f;
  }
  __syncthreads();
  const int x = threadIdx.x;
  const long long at = static_cast<long long>(head) * p.tiles + tile;
  if (x < kTile) {
    float sum = 0;
    for (int i = 0; i < kTile; ++i) sum += weights[i * kRowFloats + x];
    p.by_token[at * kTile + x] = sum;
  }
  float sum = 0;
  for (int i = max(0, x - (kTile - 1)); i <= min(kTile - 1, x); ++i) {
    sum += weights[i * kRowFloats + i + (kTile - 1) - x];
  }
  p.by_diagonal[at * kDiagonals + x] = sum;
}

// The sum of an offset over the two tiles that its diagonal crosses.
template <typename T>
__device__ __forceinline__ float offset_sum(const VerticalSlashParams<T>& p, int head, int offset) {
  const float* sums = p.by_diagonal + static_cast<long long>(head) * p.tiles * kDiagonals;
  const int x =
      offset - (p.tokens - p.estimation_rows) + kTile - 1;  // in tile 0; 64 more in each next one
  float sum = 0;
  for (int tile = max(0, (-x + kTile - 1) / kTile); tile < p.tiles; ++tile) {
    if (x + tile * kTile > 2 * (kTile - 1)) break;
    sum += sums[tile * kDiagonals + x + tile * kTile];
  }
  return sum;
}

// Blocks (head, 0) select columns, (head, 1) offsets.
template <typename T>
__global__ void __launch_bounds__(kTopKThreads)
    top_k_lines_kernel(const VerticalSlashParams<T> p, int* columns, int verticals, int* offsets,
                       int slashes) {
  pdl_begin();
  __shared__ TopKShared shared;
  const int head = blockIdx.x;
  if (blockIdx.y == 0) {
    const float* sums = p.by_token + static_cast<long long>(head) * p.tiles * kTile;
    top_k(
        shared, p.tokens, verticals,
        [&](int j) { return j < kFirstVerticals ? ~0u : order_key(sums[j]); },
        [&](int position, int j) {
          columns[static_cast<long long>(head) * verticals + position] = j;
        });
  } else {
    top_k(
        shared, p.tokens, slashes,
        [&](int o) { return o < kFirstSlashes ? ~0u : order_key(offset_sum(p, head, o)); },
        [&](int position, int o) {
          offsets[static_cast<long long>(head) * slashes + position] = o;
        });
  }
}

// One block per head: the first offset of a band writes its begin, the last one its end.
__global__ void __launch_bounds__(kTopKThreads)
    slash_bands_kernel(Band* bands, const int* offsets, int slashes) {
  pdl_begin();
  __shared__ TopKShared shared;
  const int* mine = offsets + static_cast<long long>(blockIdx.x) * slashes;
  Band* to = bands + static_cast<long long>(blockIdx.x) * (slashes + 1);
  const auto begins = [&](int i) { return i == 0 || mine[i] > mine[i - 1] + kSlashWidth; };
  int written = 0;
  for (int first = 0; first < slashes; first += kTopKThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool begin = i < slashes && begins(i);
    const Counted counted = count_block(begin, shared.warp_counts[0]);
    const int band = written + counted.before + (begin ? 1 : 0);  // bands are numbered from 1
    if (begin) to[band].a = mine[i];
    if (i < slashes && (i + 1 == slashes || begins(i + 1))) to[band].b = mine[i] + kSlashWidth;
    written += counted.all;
  }
  if (threadIdx.x == 0) to[0] = {written, 0};
}

struct IndexParams {
  const Band* bands;
  const int *columns, *offsets;
  TokenRange* ranges;
  int *range_counts, *singles, *single_counts;
  int verticals, slashes, capacity, heads, first_position, end;
};

__global__ void __launch_bounds__(kTopKThreads) index_kernel(const IndexParams p) {
  pdl_begin();
  __shared__ TopKShared shared;
  const int block = blockIdx.x, head = blockIdx.y;
  const Band* bands = p.bands + static_cast<long long>(head) * (p.slashes + 1);
  const int e = p.first_position + (block + 1) * kSlashWidth;
  const BlockRanges lines(bands + 1, bands->a, p.offsets + static_cast<long long>(head) * p.slashes,
                          p.slashes, e, min(e, p.end));
  const long long at = static_cast<long long>(block) * p.heads + head;
  for (int i = threadIdx.x; i < lines.ranges(); i += kTopKThreads) {
    p.ranges[at * p.capacity + i] = lines.range(i);
  }
  const int* columns = p.columns + static_cast<long long>(head) * p.verticals;
  int* singles = p.singles + at * p.verticals;
  const int count = write_selected(
      shared, p.verticals, 0, [&](int i) { return lines.outside(columns[i]); },
      [](int) { return false; }, [&](int position, int i) { singles[position] = columns[i]; });
  if (threadIdx.x == 0) {
    p.range_counts[at] = lines.ranges();
    p.single_counts[at] = count;
  }
}

template <typename T, int D>
void choose(const VerticalSlash& args, cudaStream_t stream) {
  const VerticalSlashParams<T> p(args);
  constexpr int kBytes = kTileBytes<T, D>;
  const auto sum_rows = sum_rows_kernel<T, D>;
  const auto sum_lines = sum_lines_kernel<T, D>;
  allow_shared_memory(sum_rows, kBytes, "preparing vertical_slash");
  allow_shared_memory(sum_lines, kBytes, "preparing vertical_slash");
  const auto heads = static_cast<unsigned>(p.heads);
  const dim3 grid(static_cast<unsigned>(p.tiles), heads);
  sum_rows<<<grid, kThreads, kBytes, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching vertical_slash");
  launch_with_pdl("launching vertical_slash", add_rows_kernel<T>, heads, kTile * 8, stream, p);
  sum_lines<<<grid, kThreads, kBytes, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching vertical_slash");
  launch_with_pdl("launching vertical_slash", top_k_lines_kernel<T>, dim3(heads, 2), kTopKThreads,
                  stream, p, args.columns.as<int>(), static_cast<int>(args.columns.shape[1]),
                  args.offsets.as<int>(), static_cast<int>(args.offsets.shape[1]));
}

}  // namespace

void vertical_slash(const VerticalSlash& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  with_element_type(args.prompt.q.dtype, [&]<typename T>(T) {
    if constexpr (sizeof(T) == 4) {
      choose<T, 64>(args, native);  // float32 has no operand tiles in shared memory
    } else {
      with_padded_head(args.prompt.head_dim(), [&]<int D>() { choose<T, D>(args, native); });
    }
  });
}

void slash_bands(const TensorView& bands, const TensorView& offsets, Stream& stream) {
  launch_with_pdl("launching slash_bands", slash_bands_kernel,
                  static_cast<unsigned>(offsets.shape[0]), kTopKThreads,
                  nvllm::cuda::native(stream), bands.as<Band>(), offsets.as<int>(),
                  static_cast<int>(offsets.shape[1]));
}

void vertical_slash_index(const VerticalSlashIndex& args, Stream& stream) {
  IndexParams p{};
  p.bands = args.bands.as<Band>();
  p.columns = args.columns.as<int>();
  p.offsets = args.offsets.as<int>();
  p.ranges = args.ranges.as<TokenRange>();
  p.range_counts = args.range_counts.as<int>();
  p.singles = args.singles.as<int>();
  p.single_counts = args.single_counts.as<int>();
  p.verticals = static_cast<int>(args.columns.shape[1]);
  p.slashes = static_cast<int>(args.offsets.shape[1]);
  p.capacity = static_cast<int>(args.ranges.shape[2]);
  p.heads = static_cast<int>(args.heads());
  p.first_position = static_cast<int>(args.first_position);
  p.end = static_cast<int>(args.first_position + args.rows);
  const dim3 grid(static_cast<unsigned>(args.blocks()), static_cast<unsigned>(args.heads()));
  launch_with_pdl("launching vertical_slash_index", index_kernel, grid, kTopKThreads,
                  nvllm::cuda::native(stream), p);
}

}  // namespace nvllm::kernels::cuda
