// What the kernels of sparse attention share: the lists, and the rows and tokens of a block.
#pragma once

#include "kernels/cuda/attention_lists.cuh"
#include "kernels/sparse_attention.h"

namespace nvllm::kernels::cuda {

inline constexpr int kTileShift = 7;
static_assert(kSparseTile == 1 << kTileShift);

struct SparseLists {
  const int* tile_counts;  // nullptr: ranges and columns
  const int* tiles;
  const int* range_counts;
  const int2* ranges;
  const int* column_counts;
  const int* columns;
  int tile_capacity, range_capacity, column_capacity;
  int rows;            // of q
  int first_position;  // of the first of them

  explicit SparseLists(const SparseAttention& args)
      : tile_counts(args.tile_counts.as<int>()),
        tiles(args.tiles.as<int>()),
        range_counts(args.range_counts.as<int>()),
        ranges(args.ranges.as<int2>()),
        column_counts(args.column_counts.as<int>()),
        columns(args.columns.as<int>()),
        tile_capacity(static_cast<int>(args.tiles.shape[2])),
        range_capacity(static_cast<int>(args.ranges.shape[2])),
        column_capacity(static_cast<int>(args.columns.shape[2])),
        rows(static_cast<int>(args.q.shape[0])),
        first_position(static_cast<int>(args.first_position)) {}
};

// `count` rows of a head from first_row on, none beyond the last one.
template <typename T>
__device__ __forceinline__ AttentionRows<T> rows_of_head(const AttentionParams<T>& p,
                                                         const SparseLists& lists, int head,
                                                         int first_row, int count) {
  return {p,    0, (p.first_head + head) / p.group, first_row, min(count, lists.rows - first_row),
          head, 1};
}

template <typename T>
__device__ __forceinline__ ListedPart<T> listed_tiles(const AttentionRows<T>& rows,
                                                      const SparseLists& lists) {
  const long long list =
      static_cast<long long>(rows.first_row >> kTileShift) * rows.p.heads + rows.head_begin;
  const int first = lists.first_position + rows.first_row;
  return {rows,
          lists.tiles + list * lists.tile_capacity,
          lists.tile_counts[list],
          kTileShift,
          first + 1,
          first + rows.packed_rows};
}

// All lanes of a warp call it together.
template <typename T>
__device__ __forceinline__ RangesPart<T> listed_ranges(const AttentionRows<T>& rows,
                                                       const SparseLists& lists) {
  const long long list = rows.first_row / kSparseRangeRows * rows.p.heads + rows.head_begin;
  const int first = lists.first_position + rows.first_row;
  return {rows, lists.ranges + list * lists.range_capacity, lists.range_counts[list], first + 1,
          first + rows.packed_rows};
}

template <typename T>
__device__ __forceinline__ ListedPart<T> listed_columns(const AttentionRows<T>& rows,
                                                        const SparseLists& lists) {
  const long long list = rows.first_row / kSparseRangeRows * rows.p.heads + rows.head_begin;
  const int first = lists.first_position + rows.first_row;
  return {rows,
          lists.columns + list * lists.column_capacity,
          lists.column_counts[list],
          0,
          first + 1,
          first + rows.packed_rows};
}

// The version for bfloat16 and float16.
template <typename T>
void sparse_attention_prefill(const SparseAttention& args, cudaStream_t stream);
// The one for tiles with what Hopper has. False, with nothing done: not for this device or this head.
template <typename T>
bool sparse_attention_sm90(const SparseAttention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
