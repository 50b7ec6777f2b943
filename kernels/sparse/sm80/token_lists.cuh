// Lists of tokens that rows attend to, for the sparse attention kernels: their format, the lists of
// a block's rows, and the view that kernels have of them.
//
// The listed tokens are numbered consecutively and replace the tokens of AttentionPart
// (kernels/attention/sm80/attention_params.cuh). Lists ascend, so a row attends to a prefix of its
// list.
#pragma once

#include "kernels/attention/sm80/attention_params.cuh"
#include "kernels/sparse/sparse_attention.h"

namespace nvllm::kernels::cuda {

// Entries of a list: page numbers, with pages of 2^shift tokens; or, if shift is kRanges, ranges of
// any length, a begin and an end each.
struct TokenList {
  static constexpr int kRanges = -1;

  const int* entries;
  int count, shift;
};

template <typename T>
struct ListedPart : AttentionRows<T> {
  TokenList list;
  int first_visible;  // end of the tokens that the first row attends to
  int end;            // end of the tokens that the last row attends to
  int tokens;         // listed tokens before the end
  // The thread's cursor in a list of ranges: an entry, and the number of its first token.
  // Consecutive requests of a thread are for nearby tokens.
  mutable int entry = 0, first = 0;

  // For a list of ranges, all lanes of a warp call it together.
  __device__ __forceinline__ ListedPart(const AttentionRows<T>& rows, const TokenList& entries,
                                        int first_visible, int end)
      : AttentionRows<T>(rows), list(entries), first_visible(first_visible), end(end), tokens(0) {
    while (list.count > 0 && begin_of(list.count - 1) >= end) --list.count;
    if (list.shift == TokenList::kRanges) {
      for (int i = static_cast<int>(threadIdx.x) % 32; i < list.count; i += 32) tokens += length(i);
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) tokens += __shfl_xor_sync(~0u, tokens, lanes);
    } else if (list.count > 0) {
      tokens = ((list.count - 1) << list.shift) + length(list.count - 1);
    }
  }

  __device__ __forceinline__ int begin_of(int i) const {
    return list.shift == TokenList::kRanges ? list.entries[2 * i] : list.entries[i] << list.shift;
  }
  __device__ __forceinline__ int end_of(int i) const {
    return min(end, list.shift == TokenList::kRanges ? list.entries[2 * i + 1]
                                                     : (list.entries[i] + 1) << list.shift);
  }
  __device__ __forceinline__ int length(int i) const {
    return max(0, end_of(i) - begin_of(i));
  }

  __device__ __forceinline__ int visible(int packed_row) const {
    const int later = min(end, first_visible + packed_row / this->group_heads);
    int seen = tokens;
    // Only the last entries may extend past the end.
    for (int i = list.count - 1; i >= 0 && end_of(i) > later; --i) {
      seen -= max(0, end_of(i) - max(begin_of(i), later));
    }
    return seen;
  }
  __device__ __forceinline__ int token(int number) const {
    if (list.shift != TokenList::kRanges) {
      return begin_of(number >> list.shift) + (number & ((1 << list.shift) - 1));
    }
    while (number < first) first -= length(--entry);
    while (number >= first + length(entry)) first += length(entry++);
    return begin_of(entry) + number - first;
  }
  __device__ __forceinline__ long long kv_offset_at(int number) const {
    return this->kv_offset(token(number));
  }
};

inline constexpr int kTileShift = 7;
static_assert(kSparseTile == 1 << kTileShift);

struct SparseLists {
  const int* tile_counts;  // nullptr: ranges and columns
  const int* tiles;
  const int* range_counts;
  const int* ranges;
  const int* column_counts;
  const int* columns;
  int tile_capacity, range_capacity, column_capacity;
  int rows;            // of q
  int first_position;  // of the first of them
  int count;           // lists of each row block and head

  explicit SparseLists(const SparseAttention& args)
      : tile_counts(args.tile_counts.as<int>()),
        tiles(args.tiles.as<int>()),
        range_counts(args.range_counts.as<int>()),
        ranges(args.ranges.as<int>()),
        column_counts(args.column_counts.as<int>()),
        columns(args.columns.as<int>()),
        tile_capacity(static_cast<int>(args.tiles.shape[2])),
        range_capacity(static_cast<int>(args.ranges.shape[2])),
        column_capacity(static_cast<int>(args.columns.shape[2])),
        rows(static_cast<int>(args.q.shape[0])),
        first_position(static_cast<int>(args.first_position)),
        count(args.by_tiles() ? 1 : 2) {}
};

// Up to `count` rows of a head from first_row on.
template <typename T>
__device__ __forceinline__ AttentionRows<T> rows_of_head(const AttentionParams<T>& p,
                                                         const SparseLists& lists, int head,
                                                         int first_row, int count) {
  return {p,    0, (p.first_head + head) / p.group, first_row, min(count, lists.rows - first_row),
          head, 1};
}

// The rows with one of their lists. Tiles have one list; ranges and columns are two. All lanes of a
// warp call it together.
template <typename T>
__device__ __forceinline__ ListedPart<T> listed(const AttentionRows<T>& rows,
                                                const SparseLists& lists, const TokenList& list) {
  const int first = lists.first_position + rows.first_row;
  return {rows, list, first + 1, first + rows.packed_rows};
}

// The index of the rows' lists.
template <typename T>
__device__ __forceinline__ long long list_at(const AttentionRows<T>& rows) {
  return static_cast<long long>(rows.first_row >> kTileShift) * rows.p.heads + rows.head_begin;
}

template <typename T>
__device__ __forceinline__ TokenList tiles_of(const AttentionRows<T>& rows,
                                              const SparseLists& lists) {
  const long long at = list_at(rows);
  return {lists.tiles + at * lists.tile_capacity, lists.tile_counts[at], kTileShift};
}

template <typename T>
__device__ __forceinline__ TokenList ranges_of(const AttentionRows<T>& rows,
                                               const SparseLists& lists) {
  const long long at = list_at(rows);
  return {lists.ranges + at * lists.range_capacity * 2, lists.range_counts[at], TokenList::kRanges};
}

template <typename T>
__device__ __forceinline__ TokenList columns_of(const AttentionRows<T>& rows,
                                                const SparseLists& lists) {
  const long long at = list_at(rows);
  return {lists.columns + at * lists.column_capacity, lists.column_counts[at], 0};
}

template <typename T>
__device__ __forceinline__ TokenList list_of(const AttentionRows<T>& rows, const SparseLists& lists,
                                             int number) {
  if (lists.tile_counts != nullptr) return tiles_of(rows, lists);
  return number == 0 ? ranges_of(rows, lists) : columns_of(rows, lists);
}

// The kernels of Hopper for bfloat16 and float16. Returns false, with nothing enqueued, on another
// device or with a head_dim that they do not support.
template <typename T>
bool sparse_attention_sm90(const SparseAttention& args, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
