// What rows attend to where it is listed: the listed tokens have numbers, one after the other, and stand in the place
// of AttentionPart's tokens (attention.cuh). Lists ascend, so a row sees the first so many of them.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace nvllm::kernels::cuda {

// A list of pages of 2^shift tokens; of the last one perhaps only the tokens before `end`.
template <typename T>
struct ListedPart : AttentionRows<T> {
  const int* list;
  int count, shift;
  int end;            // the token after the last one that the last row sees
  int first_visible;  // the one after the last that the first row sees
  int tokens;

  __device__ __forceinline__ ListedPart(const AttentionRows<T>& rows, const int* list, int count,
                                        int shift, int first_visible, int end)
      : AttentionRows<T>(rows),
        list(list),
        count(count),
        shift(shift),
        end(end),
        first_visible(first_visible) {
    while (this->count > 0 && begin_of(this->count - 1) >= end) --this->count;
    tokens = this->count << shift;
    if (this->count > 0) tokens -= max(0, begin_of(this->count - 1) + (1 << shift) - end);
  }

  __device__ __forceinline__ int begin_of(int entry) const { return list[entry] << shift; }
  __device__ __forceinline__ int visible(int packed_row) const {
    const int later = min(end, first_visible + packed_row / this->group_heads);
    int seen = tokens;
    // Only the last entries may have tokens that come later.
    for (int i = count - 1; i >= 0; --i) {
      const int begin = begin_of(i), end_of = min(end, begin + (1 << shift));
      if (end_of <= later) break;
      seen -= end_of - max(begin, later);
    }
    return seen;
  }
  __device__ __forceinline__ int token(int number) const {
    return begin_of(number >> shift) + (number & ((1 << shift) - 1));
  }
  __device__ __forceinline__ long long place(int number) const {
    return this->place_of(token(number));
  }
};

// A list of ranges of any length, [begin, end) each. A thread asks for tokens whose numbers are near to those that it
// asked for before. All lanes of a warp make it together.
template <typename T>
struct RangesPart : AttentionRows<T> {
  const int2* list;
  int count;
  int end, first_visible, tokens;    // as of ListedPart
  mutable int entry = 0, first = 0;  // where the thread is: a range, and its first token's number

  __device__ __forceinline__ RangesPart(const AttentionRows<T>& rows, const int2* list, int count,
                                        int first_visible, int end)
      : AttentionRows<T>(rows), list(list), count(count), end(end), first_visible(first_visible) {
    tokens = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32) tokens += length(i);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) tokens += __shfl_xor_sync(~0u, tokens, lanes);
  }

  __device__ __forceinline__ int length(int i) const {
    return max(0, min(end, list[i].y) - list[i].x);
  }
  __device__ __forceinline__ int visible(int packed_row) const {
    const int later = min(end, first_visible + packed_row / this->group_heads);
    int seen = tokens;
    for (int i = count - 1; i >= 0 && list[i].y > later; --i) {
      seen -= max(0, min(end, list[i].y) - max(list[i].x, later));
    }
    return seen;
  }
  __device__ __forceinline__ int token(int number) const {
    while (number < first) first -= length(--entry);
    while (number >= first + length(entry)) first += length(entry++);
    return list[entry].x + number - first;
  }
  __device__ __forceinline__ long long place(int number) const {
    return this->place_of(token(number));
  }
};

}  // namespace nvllm::kernels::cuda
