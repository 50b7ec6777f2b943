// The main loop of a prefill block: 64 packed rows, 16 per warp, process the tokens that they
// attend to, tile by tile. While one tile is computed, the next one is copied asynchronously
// (double buffering). attention.cu uses it for dense attention,
// kernels/sparse/sm80/sparse_attention.cu for token lists.
#pragma once

#include "kernels/attention/sm80/mma_rows.cuh"

namespace nvllm::kernels::cuda::prefill {

inline constexpr int kWarps = 4;
inline constexpr int kRows = kWarps * 16;

// Tokens of a tile: longer heads leave fewer registers and less shared memory.
template <int D>
inline constexpr int kTokens = D <= 128 ? 64 : 32;

template <int D>
inline constexpr int kQueryBytes = kRows* D * 2;
template <int D>
inline constexpr int kTileBytes = kTokens<D>* D * 2;
template <int D>
inline constexpr int kSharedBytes = kQueryBytes<D> + 4 * kTileBytes<D>;

template <typename T, int D>
using Rows = WarpRows<T, D, kTokens<D>>;

// Adds the tokens of `part` to the block's rows from block_row on. `started`: other tokens have
// been added already.
template <typename T, int D, typename Part>
__device__ __forceinline__ void add_tokens(const Part& part, int block_row, unsigned queries,
                                           bool& started, Rows<T, D>& rows) {
  constexpr int kWarpTokens = kTokens<D> / kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = block_row + warp * 16;
  const int begin = Part::kWindowed ? part.first_seen(block_row) : 0;
  const int first_tile = begin / kTokens<D>;
  const int tokens = max(0, part.visible(min(block_row + kRows, part.packed_rows) - 1));
  const int tiles = (tokens + kTokens<D> - 1) / kTokens<D>;
  if (tiles == first_tile) return;

  const auto keys_of = [&](int tile) {
    return queries + kQueryBytes<D> + tile % 2 * 2 * kTileBytes<D>;
  };
  const auto copy_tile = [&](int tile) {
    const unsigned keys = keys_of(tile);
    copy_tokens<T, D, kWarpTokens>(part, tile * kTokens<D> + warp * kWarpTokens, keys,
                                   keys + kTileBytes<D>, warp * kWarpTokens, lane, begin);
    commit_copies();
  };
  if (started) {
    __syncthreads();  // all warps are done with the last tile of the previous tokens
  } else if constexpr (kIsE4m3<T>) {
    rows.start(part, row);
  } else {
    copy_queries<D, T>(part, row, queries, warp * 16, lane);
  }
  copy_tile(first_tile);
  // The values for missing rows are irrelevant.
  const int visible[2] = {part.visible(row + lane / 4), part.visible(row + lane / 4 + 8)};
  const int min_visible = part.visible(row), max_visible = part.visible(row + 15);
  int first_seen[2] = {0, 0}, min_first_seen = 0, max_first_seen = 0;
  if constexpr (Part::kWindowed) {
    first_seen[0] = part.first_seen(row + lane / 4);
    first_seen[1] = part.first_seen(row + lane / 4 + 8);
    min_first_seen = part.first_seen(row), max_first_seen = part.first_seen(row + 15);
  }
  for (int tile = first_tile; tile < tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has arrived, and all warps are done with the one before it
    if constexpr (!kIsE4m3<T>) {
      if (tile == first_tile && !started) rows.start();
    }
    if (tile + 1 < tiles) copy_tile(tile + 1);
    const int first = tile * kTokens<D>;
    if (Part::kWindowed && first + kTokens<D> <= min_first_seen) continue;
    if (first < max_visible) {
      const bool masked =
          first + kTokens<D> > min_visible || (Part::kWindowed && first < max_first_seen);
      rows.template add<Part::kWindowed>(keys_of(tile), keys_of(tile) + kTileBytes<D>, first,
                                         masked, visible, first_seen);
    }
  }
  started = true;
}

// Writes the results of a warp's 16 rows from `row` on.
template <typename T, int D>
__device__ __forceinline__ void write_rows(const AttentionRows<T>& part, int row,
                                           Rows<T, D>& rows) {
  const AttentionParams<T>& p = part.p;
  const int lane = threadIdx.x % 32;
  rows.finish(p.value_scale(part.kv_head));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int packed_row = row + lane / 4 + 8 * i;
    if (packed_row >= part.packed_rows) break;
    const long long index = part.index(packed_row);
    p.add_sink(index, rows.row_max[i], rows.sum[i]);
    const float factor = rows.sum[i] == 0 ? 0.0f : 1 / rows.sum[i];
    const long long to = index * p.head_dim;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      if (rows.column(n) < p.head_dim) {
        p.store(to + rows.column(n), rows.out[n][2 * i] * factor, rows.out[n][2 * i + 1] * factor);
      }
    }
    if (p.lse != nullptr && lane % 4 == 0) {
      p.lse[index] = log_sum_exp(rows.row_max[i], rows.sum[i]);
    }
  }
}

}  // namespace nvllm::kernels::cuda::prefill
