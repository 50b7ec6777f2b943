// What the kernels of XAttention's choice are given: scores of strided rows and tokens (select_tiles.cu,
// select_tiles_sm90.cu), then the tiles that are kept (keep_tiles.cuh).
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/select_tiles.h"

namespace nvllm::kernels::cuda {

inline constexpr int kDepth =
    64;  // elements of a strided row that are in shared memory at once: a stage
inline constexpr int kTile = static_cast<int>(kTileStrides);
inline constexpr int kStep = static_cast<int>(kStride);

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

// The sums of bfloat16 and float16 with what Hopper has. False, with nothing done: not on this device, or without
// room for gathered keys.
template <typename T>
bool score_tiles_sm90(const SelectTiles& args, const TileParams<T>& params, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
