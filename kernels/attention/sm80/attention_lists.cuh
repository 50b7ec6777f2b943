// What rows attend to where it is listed: the listed tokens have numbers, one after the other, and stand in the place
// of AttentionPart's tokens (attention.cuh). Lists ascend, so a row sees the first so many of them.
#pragma once

#include "kernels/attention/sm80/attention.cuh"

namespace nvllm::kernels::cuda {

// Entries of a list: pages of 2^shift tokens, by their numbers; or, where shift is kRanges, ranges of any length, a
// begin and an end each.
struct TokenList {
  static constexpr int kRanges = -1;

  const int* entries;
  int count, shift;
};

template <typename T>
struct ListedPart : AttentionRows<T> {
  TokenList list;
  int first_visible;  // the token after the last one that the first row sees
  int end;            // and that the last row sees
  int tokens;         // listed ones before the end
  // Where the thread is in a list of ranges: an entry, and the number of its first token. It asks for tokens that
  // are near to those that it asked for before.
  mutable int entry = 0, first = 0;

  // For a list of ranges all lanes of a warp call it together.
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
    // Only the last entries may have tokens that come later.
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
  __device__ __forceinline__ long long place(int number) const {
    return this->place_of(token(number));
  }
};

}  // namespace nvllm::kernels::cuda
