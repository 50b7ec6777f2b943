// Top-k selection in one thread block: the k highest of many values (ties by ascending index),
// written in ascending order of their indices. Equal input bits give an equal selection.
#pragma once

#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

inline constexpr int kTopKThreads = 512;
inline constexpr int kTopKWarps = kTopKThreads / 32;

// Order-preserving map from floats to unsigned integers.
__device__ __forceinline__ unsigned order_key(float value) {
  const unsigned bits = __float_as_uint(value);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// The block's shared memory.
struct TopKShared {
  int histogram[256];
  int warp_counts[2][kTopKWarps];
  unsigned key;
  int ties;
};

// The number of threads before this one with a true predicate, and the number in the block.
struct Counted {
  int before, all;
};

// All threads of a block of kWarps warps call it together. warp_counts is overwritten.
template <int kWarps>
__device__ __forceinline__ Counted count_block(bool yes, int (&warp_counts)[kWarps]) {
  const unsigned ballot = __ballot_sync(~0u, yes);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) warp_counts[warp] = __popc(ballot);
  __syncthreads();
  Counted counted{__popc(ballot & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) counted.before += warp_counts[w];
    counted.all += warp_counts[w];
  }
  __syncthreads();
  return counted;
}

// Writes the indices i < count for which above(i), and the first `ties` of those for which
// equal(i), in ascending order; write(position, i) writes one. Returns their number. Called by a
// block of kWarps warps.
template <int kWarps, typename Above, typename Equal, typename Write>
__device__ __forceinline__ int write_selected(int (&warp_counts)[2][kWarps], int count, int ties,
                                              const Above& above, const Equal& equal,
                                              const Write& write) {
  int written = 0, equals = 0;
  for (int first = 0; first < count; first += kWarps * 32) {
    const int i = first + static_cast<int>(threadIdx.x);
    bool taken = i < count && above(i);
    const bool tie = i < count && !taken && equal(i);
    if (equals < ties) {  // the same for all threads
      const Counted counted = count_block(tie, warp_counts[0]);
      taken |= tie && equals + counted.before < ties;
      equals += counted.all;
    }
    const Counted counted = count_block(taken, warp_counts[1]);
    if (taken) write(written + counted.before, i);
    written += counted.all;
  }
  return written;
}

template <typename Above, typename Equal, typename Write>
__device__ __forceinline__ int write_selected(TopKShared& shared, int count, int ties,
                                              const Above& above, const Equal& equal,
                                              const Write& write) {
  return write_selected(shared.warp_counts, count, ties, above, equal, write);
}

// Selects the `keep` <= count highest of key(i), i < count, by radix select: eight bits at a time,
// starting with the highest, it finds the key of the last selected value and how many equal values
// are selected.
template <typename Key, typename Write>
__device__ __forceinline__ void top_k(TopKShared& shared, int count, int keep, const Key& key,
                                      const Write& write) {
  unsigned known = 0, mask = 0;
  int left = keep;  // still to be found among those that match `known`
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kTopKThreads) shared.histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kTopKThreads) {
      const unsigned k = key(i);
      if ((k & mask) == known) atomicAdd(&shared.histogram[k >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255, missing = left;
      while (digit > 0 && shared.histogram[digit] < missing) missing -= shared.histogram[digit--];
      shared.key = known | static_cast<unsigned>(digit) << shift;
      shared.ties = missing;
    }
    __syncthreads();
    known = shared.key;
    left = shared.ties;
    mask |= 255u << shift;
    __syncthreads();
  }
  write_selected(
      shared, count, left, [&](int i) { return key(i) > known; },
      [&](int i) { return key(i) == known; }, write);
}

}  // namespace nvllm::kernels::cuda
