// What the kernels of XAttention's choice are given: scores of strided rows and tokens (select_tiles.cu,
// select_tiles_sm90.cu), then the tiles that are kept (keep_tiles.cuh).
#pragma once

#include "kernels/attention/sm80/attention.cuh"
#include "kernels/sparse/sm80/block_mask.h"
#include "kernels/sparse/sm80/prompt_params.cuh"

namespace nvllm::kernels::cuda {

inline constexpr int kDepth =
    64;  // elements of a strided row that are in shared memory at once: a stage
inline constexpr int kTile = static_cast<int>(kTileStrides);
inline constexpr int kStep = static_cast<int>(kStride);

template <typename T>
struct TileParams : PromptParams<T> {
  float* sums;  // [heads][row_tiles * kTile][token_tiles]
  int *tiles, *counts;
  int padded_dim;  // head_dim, padded to a multiple of kDepth
  int row_tiles, token_tiles, capacity, first_whole_tile;
  float scale, threshold;  // scale: of exponents of 2

  explicit TileParams(const SelectTiles& args)
      : PromptParams<T>(args.prompt),
        sums(args.workspace.as<float>()),
        tiles(args.tiles.as<int>()),
        counts(args.tile_counts.as<int>()),
        padded_dim((this->head_dim + kDepth - 1) / kDepth * kDepth),
        row_tiles(static_cast<int>(args.row_tiles())),
        token_tiles(static_cast<int>(args.token_tiles())),
        capacity(static_cast<int>(args.tiles.shape[2])),
        first_whole_tile(static_cast<int>(args.first_whole_tile())),
        scale(args.prompt.scale / kStride * kLog2E),
        threshold(args.threshold) {}

  __device__ __forceinline__ int strides() const { return (this->rows + kStep - 1) / kStep; }
  // Strided tokens that a strided row sees.
  __device__ __forceinline__ int seen(int i) const {
    return (this->first_position + min(kStep * (i + 1), this->rows) - 1) / kStep + 1;
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
