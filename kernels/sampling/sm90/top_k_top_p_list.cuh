// Filtering on Hopper: what the blocks of a cluster have of a row, and the list of those of its logits that may be the
// boundary. See top_k_top_p_sm90.cu.
#pragma once

#include "kernels/common/sm90/cluster.cuh"
#include "kernels/sampling/sm80/sampling.cuh"
#include "kernels/sampling/top_k_top_p_math.h"

namespace nvllm::kernels::cuda::top_k_top_p_sm90 {

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kBlocks = 8;  // of a cluster
inline constexpr int kGroups = kWarps * kBlocks;
inline constexpr int kGroupsWithoutTopK = 64;  // the bound is so many warps' highest logit
inline constexpr int kListed = 2 * kThreads;   // logits in the list, at most

// What a block tells all others of its list.
struct Listed {
  unsigned long long mass;   // of what is listed; only for top_p
  unsigned long long total;  // of all that may be kept; only for top_p without top_k
  unsigned count;
};

// A block's shared memory; behind it lies its part of the row.
struct alignas(16) Shared {
  SharedSums<kTruncationBins> sums;
  unsigned long long scratch[kWarps + 1];
  unsigned long long totals[kBlocks];  // of the blocks' bins
  unsigned long long above;            // what lies above `bin`
  Listed listed[kBlocks];
  unsigned keys[kListed];  // of this block's list; then, in the first block, of all
  float max_of[kGroups];  // of all warps' logits
  float maximum, bound;
  unsigned count, bin;
};

#if __CUDA_ARCH__ >= 900

// Of this block's part of a row.
struct Part {
  const float* logits;  // in shared memory, NaN behind the row's end
  int length;

  // Calls take(four logits).
  template <typename Take>
  __device__ __forceinline__ void for_each(const Take& take) const {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * 4; i < length; i += kThreads * 4) {
      take(*reinterpret_cast<const float4*>(logits + i));
    }
  }
};

// This block's part of the row comes into shared memory; returns the thread's highest logit.
__device__ __forceinline__ float load_part(float* to, const float* row, long long begin, int length,
                                           long long own) {
  constexpr int kAtOnce = 5;
  float maximum = -INFINITY;
  for (int first = static_cast<int>(threadIdx.x) * 4; first < length;
       first += kAtOnce * kThreads * 4) {
    float4 vectors[kAtOnce];
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const int i = first + v * kThreads * 4;
      vectors[v] = load_logits(row, begin + i, i < length ? own : 0);
    }
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const int i = first + v * kThreads * 4;
      if (i < length) *reinterpret_cast<float4*>(to + i) = vectors[v];
      maximum =
          fmaxf(fmaxf(fmaxf(maximum, vectors[v].x), vectors[v].y), fmaxf(vectors[v].z, vectors[v].w));
    }
  }
  return maximum;
}

// Finds the highest of all warps' highest logits, and the wanted-th highest of them, the bound.
__device__ __forceinline__ void find_bound(Shared& shared, int wanted) {
  constexpr int kSharers = kThreads / kGroups;  // threads that share the comparisons of one
  const int own = static_cast<int>(threadIdx.x) / kSharers;
  const float mine = shared.max_of[own];
  int before = 0;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) % kSharers; i < kGroups; i += kSharers) {
    const float other = shared.max_of[i];
    before += other > mine || (other == mine && i < own);
  }
#pragma unroll
  for (int distance = 1; distance < kSharers; distance *= 2) {
    before += __shfl_xor_sync(kAllLanes, before, distance);
  }
  if (threadIdx.x % kSharers == 0) {
    if (before == 0) shared.maximum = mine;
    if (before == wanted - 1) shared.bound = mine;
  }
  __syncthreads();
}

// Lists this block's logits that reach a bound, and tells all blocks of them.
__device__ __forceinline__ void list_part(Shared& shared, const Part& part, const TruncationState& row,
                                          const SlotParams& params, float bound, int rank) {
  const float minimum = value_of_key(row.threshold);
  const float reached = fmaxf(bound, minimum);
  const bool adds_up = params.top_p != 0 && params.top_k == 0;
  unsigned long long mass = 0, total = 0;
  part.for_each([&](const float4& four) {
    if (!adds_up && !(fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)) >= reached)) return;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float logit = element(four, e);
      if (adds_up && logit >= minimum) {
        const unsigned long long own = mass_of(distance(logit, row.maximum, params));
        total += own;
        if (logit >= reached) mass += own;
      }
      if (logit >= reached) {
        const unsigned at = atomicAdd(&shared.count, 1u);
        if (at < kListed) shared.keys[at] = order_key(logit);
      }
    }
  });
  if (adds_up) {
    mass = over_block(mass, Sum(), shared.scratch);
    total = over_block(total, Sum(), shared.scratch);
  }
  __syncthreads();
  if (threadIdx.x < kBlocks) {
    *address_in_block(&shared.listed[rank], static_cast<int>(threadIdx.x)) = {mass, total, shared.count};
  }
}

// The first block's: all lists one after the other.
__device__ __forceinline__ void gather_lists(Shared& shared) {
  unsigned from = shared.listed[0].count;
  for (int block = 1; block < kBlocks; ++block) {
    const unsigned count = shared.listed[block].count;
    const unsigned* keys = address_in_block(shared.keys, block);
    for (unsigned i = threadIdx.x; i < count; i += kThreads) shared.keys[from + i] = keys[i];
    from += count;
  }
}

// Sorts `count` keys in falling order; behind them come as many zeros as make a power of two.
__device__ __forceinline__ void sort_keys(unsigned* keys, unsigned count) {
  unsigned size = 2;
  while (size < count) size *= 2;
  for (unsigned i = count + threadIdx.x; i < size; i += kThreads) keys[i] = 0;
  __syncthreads();
  for (unsigned width = 2; width <= size; width *= 2) {
    for (unsigned apart = width / 2; apart > 0; apart /= 2) {
      if (threadIdx.x < size / 2) {
        const unsigned i = threadIdx.x / apart * 2 * apart + threadIdx.x % apart;
        const unsigned a = keys[i], b = keys[i + apart];
        const bool falls = (i & width) == 0;
        if (falls ? a < b : a > b) keys[i] = b, keys[i + apart] = a;
      }
      __syncthreads();
    }
  }
}

// Sums of amounts of this thread and those before it, and of all.
struct Sums {
  unsigned long long up_to, all;

  __device__ __forceinline__ Sums(unsigned long long own, unsigned long long* scratch)
      : up_to(own), all(0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const unsigned long long before = __shfl_up_sync(kAllLanes, up_to, lanes);
      if (lane >= lanes) up_to += before;
    }
    __syncthreads();  // whoever still reads what the scratch held before
    if (lane == 31) scratch[warp] = up_to;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) up_to += scratch[w];
      all += scratch[w];
    }
  }
};

// The first block's: the threshold, which is among its sorted keys. `total`: of all that may be kept, for top_p
// without top_k.
__device__ __forceinline__ void choose_of_list(Shared& shared, TruncationState row,
                                               const SlotParams& params, unsigned count,
                                               unsigned long long total, float* threshold) {
  const auto k = static_cast<unsigned>(params.top_k);
  if (k > 0 && k <= count) row.threshold = shared.keys[k - 1];
  if (params.top_p == 0) {
    if (threadIdx.x == 0) *threshold = value_of_key(row.threshold);
    return;
  }
  constexpr int kOwn = kListed / kThreads;
  unsigned long long masses[kOwn], own = 0;
  const unsigned first = threadIdx.x * kOwn;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const unsigned key = first + i < count ? shared.keys[first + i] : 0;
    masses[i] = key >= row.threshold ? mass_of(distance(value_of_key(key), row.maximum, params)) : 0;
    own += masses[i];
  }
  const Sums sums(own, shared.scratch);
  const unsigned long long wanted = wanted_of(k > 0 ? sums.all : total, params, TruncationKind::top_p);
  unsigned long long above = sums.up_to - own;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (above < wanted && above + masses[i] >= wanted) {
      *threshold = value_of_key(shared.keys[first + i]);
    }
    above += masses[i];
  }
}

#endif

}  // namespace nvllm::kernels::cuda::top_k_top_p_sm90
