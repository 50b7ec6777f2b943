// Attention with heads of 257 to 512 elements on tensor cores. The results of such a head do not
// fit into one warp's registers, so four warps share each row; each warp has a slice of 128 columns
// of queries, keys, values and results.
//
// A warp multiplies its slices of queries and keys. The four warps add these partial scores through
// shared memory, all in the same order, so that each has the same bits of the scores and of the
// softmax that follows. Then each accumulates its slice of the values (mma_rows.cuh).
//
// A block has kGroups such groups of 16 packed rows, which process the tokens tile by tile. While
// one tile is computed, the next one is copied asynchronously (double buffering).
//
// As in attention.cu there are a prefill and a decode kernel, each for a cache of the rows' type
// and for one of E4m3 (e4m3_rows.cuh); Hopper has no versions of its own.
#include <algorithm>

#include "kernels/attention/sm80/decode.cuh"
#include "kernels/attention/sm80/mma_rows.cuh"

namespace nvllm::kernels::cuda {
namespace hdim512 {
namespace {

constexpr int kHeadDim = 512, kSlice = 128, kSlices = kHeadDim / kSlice;
constexpr int kRows = 16;  // per group
// Blocks of 32 packed rows fit into the shared memory of every GPU since Ampere.
constexpr int kPrefillGroups = 2;
static_assert(kHeadDim == kMaxHeadDim);

template <int kGroups>
constexpr int kThreads = kGroups* kSlices * 32;

// Tokens of a tile; the keys of a tile take 16 KiB.
template <typename T>
constexpr int kTokens = kIsE4m3<T> ? 32 : 16;
// A tile consists of one part per slice, [tokens][kSlice].
template <typename T>
constexpr int kSliceBytes = kTokens<T>* kHeadBytes<T, kSlice>;
template <typename T>
constexpr int kTileBytes = kSlices* kSliceBytes<T>;
// Partial scores of a group: of each slice and lane.
template <typename T>
constexpr int kScoreBytes = kSlices* kRows* kTokens<T>* static_cast<int>(sizeof(float));
template <typename T, int kGroups>
constexpr int kSharedBytes = 4 * kTileBytes<T> + kGroups* kScoreBytes<T>;

// The layout of DefaultTile for kSlice columns and tiles at multiples of 256 bytes: chunk indices
// are swizzled in the address itself, which takes fewer registers.
template <typename T>
struct SliceTile {
  static __device__ __forceinline__ unsigned at(unsigned tile, int row, int chunk) {
    return (tile + row * kHeadBytes<T, kSlice> + (row & 7) * 16) ^ (chunk * 16);
  }
};

template <typename T>
using Rows = WarpRows<T, kSlice, kTokens<T>, SliceTile<T>>;

// A warp's position in its block.
struct Place {
  int group = static_cast<int>(threadIdx.x) / 32 / kSlices;
  int slice = static_cast<int>(threadIdx.x) / 32 % kSlices;
  int lane = static_cast<int>(threadIdx.x) % 32;
};

// A warp copies the keys and values of tokens [first, first + kCount) into rows [row, row + kCount)
// of two tiles, with zeros for missing tokens, for tokens before `begin`, and past the head's end.
// All lanes call it together.
template <typename T, int kCount, typename Part>
__device__ __forceinline__ void copy_heads(const Part& part, int first, unsigned keys,
                                           unsigned values, int row, int lane, int begin) {
  constexpr int kChunks = kHeadBytes<T, kHeadDim> / 16, kSliceChunks = kChunks / kSlices;
  constexpr int kElements = kHeadDim / kChunks;
  static_assert(kCount <= 32 && kChunks % 32 == 0);
  // Each lane finds the offset of one token. Lanes beyond the last token repeat it: they must not
  // read past the end of the block table nor, with a window, entries that have been released.
  int own = min(first + lane % kCount, part.tokens - 1);
  if constexpr (Part::kWindowed) own = max(own, min(begin, part.tokens - 1));
  const long long mine = part.kv_offset_at(own);
#pragma unroll 1  // limits register use
  for (int i = 0; i < kCount * kChunks / 32; ++i) {
    const int token = i * 32 / kChunks, chunk = (i * 32 + lane) % kChunks;
    const long long offset = __shfl_sync(~0u, mine, token) + chunk * kElements;
    bool valid = first + token < part.tokens && chunk * kElements < part.p.head_dim;
    if (Part::kWindowed && first + token < begin) valid = false;
    const long long from = valid ? offset : 0;
    const unsigned at =
        SliceTile<T>::at(chunk / kSliceChunks * kSliceBytes<T>, row + token, chunk % kSliceChunks);
    copy_chunk(keys + at, part.p.keys + from, valid);
    copy_chunk(values + at, part.p.values + from, valid);
  }
}

// Replaces the scores of a group's slices, one per warp, by their sum over the slices. `shared`:
// the group's kScoreBytes, which nobody is reading any more.
template <int kFloats>
__device__ __forceinline__ void add_up_scores(float* shared, const Place& place,
                                              float (&score)[kFloats / 4][4]) {
  auto* const all = reinterpret_cast<float4*>(shared);
  const auto at = [&](int slice, int n) { return (slice * (kFloats / 4) + n) * 32 + place.lane; };
#pragma unroll
  for (int n = 0; n < kFloats / 4; ++n) {
    all[at(place.slice, n)] = make_float4(score[n][0], score[n][1], score[n][2], score[n][3]);
  }
  asm volatile("bar.sync %0, %1;" ::"r"(1 + place.group), "n"(kSlices * 32) : "memory");
#pragma unroll
  for (int n = 0; n < kFloats / 4; ++n) {
    float4 sum = all[at(0, n)];
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) {
      const float4 more = all[at(slice, n)];
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    score[n][0] = sum.x, score[n][1] = sum.y, score[n][2] = sum.z, score[n][3] = sum.w;
  }
}

// The tiles of tokens that a block's rows from block_row on attend to.
struct Tiles {
  int first, end;
};
template <typename T, int kGroups, typename Part>
__device__ __forceinline__ Tiles tiles_of(const Part& part, int block_row) {
  const int begin = Part::kWindowed ? part.first_seen(block_row) : 0;
  const int last_row = min(block_row + kGroups * kRows, part.packed_rows) - 1;
  const int tokens = max(0, part.visible(last_row));
  return {begin / kTokens<T>, (tokens + kTokens<T> - 1) / kTokens<T>};
}

// Adds the tokens of these tiles to the block's rows from block_row on. `shared`: kSharedBytes.
template <typename T, int kGroups, typename Part>
__device__ __forceinline__ void add_tokens(const Part& part, int block_row, const Tiles& tiles,
                                           unsigned char* shared, const Place& place,
                                           Rows<T>& rows) {
  constexpr int kTile = kTokens<T>, kWarpTokens = kTile / (kGroups * kSlices);
  if (tiles.first >= tiles.end) return;
  const int row = block_row + place.group * kRows, lane = place.lane;
  const int begin = Part::kWindowed ? part.first_seen(block_row) : 0;
  auto* const scores =
      reinterpret_cast<float*>(shared + 4 * kTileBytes<T> + place.group * kScoreBytes<T>);
  const unsigned buffers = shared_address(shared);
  const auto keys_of = [&](int tile) { return buffers + tile % 2 * 2 * kTileBytes<T>; };
  const auto copy_tile = [&](int tile) {
    const int mine = (place.group * kSlices + place.slice) * kWarpTokens;
    copy_heads<T, kWarpTokens>(part, tile * kTile + mine, keys_of(tile),
                               keys_of(tile) + kTileBytes<T>, mine, lane, begin);
    commit_copies();
  };
  copy_tile(tiles.first);
  rows.start(HeadSlice<T>(part, place.slice * kSlice), row);
  // The values for missing rows are irrelevant.
  const int visible[2] = {part.visible(row + lane / 4), part.visible(row + lane / 4 + 8)};
  const int min_visible = part.visible(row), max_visible = part.visible(row + kRows - 1);
  int first_seen[2] = {0, 0}, min_first_seen = 0, max_first_seen = 0;
  if constexpr (Part::kWindowed) {
    first_seen[0] = part.first_seen(row + lane / 4);
    first_seen[1] = part.first_seen(row + lane / 4 + 8);
    min_first_seen = part.first_seen(row), max_first_seen = part.first_seen(row + kRows - 1);
  }
  for (int tile = tiles.first; tile < tiles.end; ++tile) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has arrived, and all warps are done with the one before it
    if (tile + 1 < tiles.end) copy_tile(tile + 1);
    const int first = tile * kTile;
    // The warps of a group skip the same tiles.
    if (first >= max_visible || (Part::kWindowed && first + kTile <= min_first_seen)) continue;
    const unsigned keys = keys_of(tile) + place.slice * kSliceBytes<T>;
    float score[kTile / 8][4] = {};
    rows.add_scores(keys, score);
    add_up_scores<kTile / 2>(scores, place, score);
    const bool masked = first + kTile > min_visible || (Part::kWindowed && first < max_first_seen);
    rows.template add_scored<Part::kWindowed>(keys + kTileBytes<T>, first, masked, visible,
                                              first_seen, score);
  }
}

// Writes the results of a group's 16 rows from `row` on; each warp writes its slice.
template <typename T>
__device__ __forceinline__ void write_rows(const AttentionRows<T>& part, int row,
                                           const Place& place, Rows<T>& rows) {
  const AttentionParams<T>& p = part.p;
  rows.finish(p.value_scale(part.kv_head));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int packed_row = row + place.lane / 4 + 8 * i;
    if (packed_row >= part.packed_rows) break;
    const long long index = part.index(packed_row);
    p.add_sink(index, rows.row_max[i], rows.sum[i]);
    const float factor = rows.sum[i] == 0 ? 0.0f : 1 / rows.sum[i];
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n) {
      const int column = place.slice * kSlice + rows.column(n);
      if (column < p.head_dim) {
        p.store(index * p.head_dim + column, rows.out[n][2 * i] * factor,
                rows.out[n][2 * i + 1] * factor);
      }
    }
    if (p.lse != nullptr && place.slice == 0 && place.lane % 4 == 0) {
      p.lse[index] = log_sum_exp(rows.row_max[i], rows.sum[i]);
    }
  }
}

// The grid is that of prefill_kernel (attention.cu).
template <typename T, bool kWindow>
__global__ void __launch_bounds__(kThreads<kPrefillGroups>, 2)
    hdim512_prefill_kernel(const AttentionParams<T> p) {
  extern __shared__ __align__(256) unsigned char shared[];
  const RowBlock block = find_row_block(p, static_cast<int>(blockIdx.y),
                                        static_cast<int>(blockIdx.x), kPrefillGroups * kRows);
  if (block.sequence < 0) return;
  const AttentionPart<T, kWindow> part(p, block.sequence, blockIdx.y);
  const Place place;
  Rows<T> rows(0, 0, place.lane, p.score_scale(part.kv_head));
  const Tiles tiles = tiles_of<T, kPrefillGroups>(part, block.first_row);
  add_tokens<T, kPrefillGroups>(part, block.first_row, tiles, shared, place, rows);
  write_rows<T>(part, block.first_row + place.group * kRows, place, rows);
}

template <typename T, bool kWindow>
void prefill_rows(const Attention& args, cudaStream_t stream) {
  const AttentionParams<T> p(args);
  const dim3 blocks(
      static_cast<unsigned>(p.max_row_blocks(args.q.shape[0], kPrefillGroups * kRows)),
      p.kv_heads());
  const auto kernel = hdim512_prefill_kernel<T, kWindow>;
  constexpr int kBytes = kSharedBytes<T, kPrefillGroups>;
  allow_shared_memory(kernel, kBytes, "preparing attention");
  kernel<<<blocks, kThreads<kPrefillGroups>, kBytes, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

// Stores a warp's rows and columns into a partial result.
template <typename T>
__device__ __forceinline__ void store_slice(const Rows<T>& rows, const Place& place,
                                            decode::WarpPartial<kHeadDim>& to) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = place.lane / 4 + 8 * i;
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n) {
      const int column = place.slice * kSlice + rows.column(n);
      *reinterpret_cast<float2*>(&to.out[row][column]) =
          make_float2(rows.out[n][2 * i], rows.out[n][2 * i + 1]);
    }
    if (place.slice == 0 && place.lane % 4 == 0) {
      to.row_max[row] = rows.row_max[i], to.sum[row] = rows.sum[i];
    }
  }
}

// A block has 16 packed rows of a sequence, and the blocks of a cluster share the tokens.
template <typename T, bool kWindow>
__global__ void __launch_bounds__(kThreads<1>) hdim512_decode_kernel(const AttentionParams<T> p) {
  extern __shared__ __align__(256) unsigned char shared[];
  const AttentionPart<T, kWindow> part(p, blockIdx.z, blockIdx.y);
  const int blocks = decode::cluster_blocks();
  const int rank = static_cast<int>(blockIdx.x) % blocks;
  const int first_row = static_cast<int>(blockIdx.x) / blocks * kRows;
  if (first_row >= part.packed_rows) return;  // all blocks of the cluster return here
  const Place place;
  Rows<T> rows(0, 0, place.lane, p.score_scale(part.kv_head));
  const Tiles all = tiles_of<T, 1>(part, first_row);
  const long long count = all.end - all.first;
  const Tiles own{all.first + static_cast<int>(count * rank / blocks),
                  all.first + static_cast<int>(count * (rank + 1) / blocks)};
  add_tokens<T, 1>(part, first_row, own, shared, place, rows);
  if (blocks == 1) return write_rows<T>(part, first_row, place, rows);

  rows.finish(p.value_scale(part.kv_head));
  __syncthreads();  // the partial results overwrite the tiles
  static_assert(sizeof(decode::WarpPartial<kHeadDim>) <= kSharedBytes<T, 1>);
  auto& partial = *reinterpret_cast<decode::WarpPartial<kHeadDim>*>(shared);
  store_slice<T>(rows, place, partial);
  decode::synchronize_cluster(blocks);
  decode::combine_blocks<T, kHeadDim, kThreads<1>>(part, first_row, partial, rank, blocks);
  decode::synchronize_cluster(blocks);  // no block may exit while others read its result
}

template <typename T, bool kWindow>
void decode_rows(const Attention& args, cudaStream_t stream) {
  decode::launch_blocks(hdim512_decode_kernel<T, kWindow>,
                        decode::BlockShape{kThreads<1>, kSharedBytes<T, 1>},
                        AttentionParams<T>(args), args.max_query_rows, args.kv_length.shape[0],
                        max_tokens_seen(args), stream);
}

}  // namespace
}  // namespace hdim512

template <typename T>
void attention_hdim512(const Attention& args, cudaStream_t stream) {
  const std::int64_t packed_rows = args.max_query_rows * std::min(args.group, args.q.shape[1]);
  const bool few = packed_rows <= decode::kMaxPackedRows;
  with_window(args, [&]<bool kWindow>() {
    if (few && !args.invariant) return hdim512::decode_rows<T, kWindow>(args, stream);
    hdim512::prefill_rows<T, kWindow>(args, stream);
  });
}

template void attention_hdim512<Bf16>(const Attention& args, cudaStream_t stream);
template void attention_hdim512<F16>(const Attention& args, cudaStream_t stream);
template void attention_hdim512<E4m3Cache<Bf16>>(const Attention& args, cudaStream_t stream);
template void attention_hdim512<E4m3Cache<F16>>(const Attention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
