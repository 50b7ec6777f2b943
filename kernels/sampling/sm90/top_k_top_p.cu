// Truncation of whole rows by top-k, top-p and min-p on Hopper: a row is held in the shared memory
// of a cluster of blocks, which read it once.
//
// Usually only a few logits can be kept, and a bound selects them: the k-th highest of the
// cluster's warp maxima. Logits that reach it go into a list, which one block sorts. If the
// boundary is not in the list, for a large k or a flat top_p, all blocks count in rounds, as for
// split rows.
#include <algorithm>

#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"
#include "kernels/sampling/sm80/sampling.cuh"

namespace nvllm::kernels::cuda {
namespace hopper {
namespace {

struct Params {
  SamplingRowsView rows;
  float* thresholds;
  int length;  // of a block's part of a row: a multiple of 4
};

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 8;  // of a cluster
constexpr int kGroups = kWarps * kBlocks;
// Without top-k the bound is this many-th highest warp maximum.
[[maybe_unused]] constexpr int kGroupsWithoutTopK = 64;
constexpr int kListed = 2 * kThreads;  // logits in the list, at most

// The list summary that a block sends to all others.
struct Listed {
  unsigned long long mass;   // of the listed logits; only for top_p
  unsigned long long total;  // of all logits that may be kept; only for top_p without top_k
  unsigned count;
};

// A block's shared memory; its part of the row follows.
struct alignas(16) Shared {
  SharedSums<kTruncationBins> sums;
  unsigned long long scratch[kWarps + 1];
  unsigned long long totals[kBlocks];  // of the blocks' bins
  unsigned long long above;            // total above `bin`
  Listed listed[kBlocks];
  unsigned keys[kListed];      // this block's list; then, in the first block, all lists
  float warp_maxima[kGroups];  // of all warps' logits
  float maximum, bound;
  unsigned count, bin;
};

#if __CUDA_ARCH__ >= 900

// This block's part of a row.
struct Part {
  const float* logits;  // in shared memory, NaN past the row's end
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

// Loads this block's part of the row into shared memory; returns the thread's highest logit.
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
      maximum = fmaxf(fmaxf(fmaxf(maximum, vectors[v].x), vectors[v].y),
                      fmaxf(vectors[v].z, vectors[v].w));
    }
  }
  return maximum;
}

// Finds the highest of all warp maxima, and the wanted-th highest of them, the bound.
__device__ __forceinline__ void find_bound(Shared& shared, int wanted) {
  constexpr int kSharers = kThreads / kGroups;  // threads that share the comparisons of one
  const int own = static_cast<int>(threadIdx.x) / kSharers;
  const float mine = shared.warp_maxima[own];
  int before = 0;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) % kSharers; i < kGroups; i += kSharers) {
    const float other = shared.warp_maxima[i];
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

// Lists this block's logits that reach a bound, and sends the summary to all blocks.
__device__ __forceinline__ void list_part(Shared& shared, const Part& part,
                                          const TruncationState& row, const SlotParams& params,
                                          float bound, int rank) {
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
    *address_in_block(&shared.listed[rank], static_cast<int>(threadIdx.x)) = {mass, total,
                                                                              shared.count};
  }
}

// Called by the first block: concatenates all lists.
__device__ __forceinline__ void gather_lists(Shared& shared) {
  unsigned from = shared.listed[0].count;
  for (int block = 1; block < kBlocks; ++block) {
    const unsigned count = shared.listed[block].count;
    const unsigned* keys = address_in_block(shared.keys, block);
    for (unsigned i = threadIdx.x; i < count; i += kThreads) shared.keys[from + i] = keys[i];
    from += count;
  }
}

// Sorts `count` keys in descending order, zero-padded to a power of two.
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

// Prefix sum up to and including this thread, and the total.
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
    __syncthreads();  // the previous contents of scratch may still be read
    if (lane == 31) scratch[warp] = up_to;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) up_to += scratch[w];
      all += scratch[w];
    }
  }
};

// Called by the first block: the threshold, which is among its sorted keys. `total`: of all that
// may be kept, for top_p without top_k.
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
    masses[i] =
        key >= row.threshold ? mass_of(distance(value_of_key(key), row.maximum, params)) : 0;
    own += masses[i];
  }
  const Sums sums(own, shared.scratch);
  const unsigned long long wanted =
      wanted_of(k > 0 ? sums.all : total, params, TruncationKind::top_p);
  unsigned long long above = sums.up_to - own;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (above < wanted && above + masses[i] >= wanted) {
      *threshold = value_of_key(shared.keys[first + i]);
    }
    above += masses[i];
  }
}

// --- rounds over all logits, for boundaries that are not in the list

// Called by all blocks together: the row's state after one more round.
template <TruncationKind kKind>
__device__ __forceinline__ TruncationState count_truncation_round(Shared& shared, const Part& part,
                                                                  TruncationState row,
                                                                  const SlotParams& params,
                                                                  int round, int rank) {
  for (int bin = threadIdx.x; bin < kTruncationBins; bin += kThreads) {
    shared.sums.low[bin] = shared.sums.high[bin] = 0;
  }
  __syncthreads();
  const KeyRange keys = keys_of_round(row, round);
  const int shift = truncation_shift(round);
  const unsigned mask = truncation_mask(round);
  part.for_each([&](const float4& four) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float logit = element(four, e);
      const unsigned key = order_key(logit);
      if (!keys.holds(key)) continue;
      const unsigned bin = key >> shift & mask;
      if constexpr (kKind == TruncationKind::top_k) {
        atomicAdd(shared.sums.low + bin, 1u);
      } else {
        shared.sums.add(bin, mass_of(distance(logit, row.maximum, params)));
      }
    }
  });
  sync_cluster();

  // This block's bins: the first block has the highest. Two threads add up each bin.
  constexpr int kBlockBins = static_cast<int>(kTruncationBins) / kBlocks;
  static_assert(kThreads == 2 * kBlockBins);
  const int half = static_cast<int>(threadIdx.x) % 2;
  const int bin = static_cast<int>(kTruncationBins) - 1 - rank * kBlockBins - threadIdx.x / 2;
  unsigned long long here = 0;
#pragma unroll
  for (int block = 0; block < kBlocks / 2; ++block) {
    here += address_in_block(&shared.sums, half * kBlocks / 2 + block)->at(bin);
  }
  here += __shfl_xor_sync(kAllLanes, here, 1);
  if (half != 0) here = 0;
  const Sums sums(here, shared.scratch);
  if (threadIdx.x < kBlocks) {
    *address_in_block(&shared.totals[rank], static_cast<int>(threadIdx.x)) = sums.all;
  }
  sync_cluster();

  unsigned long long before = 0, total = 0;
  for (int block = 0; block < kBlocks; ++block) {
    if (block < rank) before += shared.totals[block];
    total += shared.totals[block];
  }
  if (round == 0) row.wanted = wanted_of(total, params, kKind);
  if (row.wanted == 0) return row;
  const unsigned long long up_to = before + sums.up_to, above = up_to - here;
  if (above < row.wanted && up_to >= row.wanted) {
    for (int block = 0; block < kBlocks; ++block) {
      *address_in_block(&shared.bin, block) = static_cast<unsigned>(bin);
      *address_in_block(&shared.above, block) = above;
    }
  }
  sync_cluster();
  return chosen(row, shared.bin, shared.above, round);
}

template <TruncationKind kKind>
__device__ __forceinline__ TruncationState count_rounds(Shared& shared, const Part& part,
                                                        TruncationState row,
                                                        const SlotParams& params, int rank) {
  for (int round = 0; round < kTruncationRounds; ++round) {
    if (takes_part(row, params, kKind, round)) {
      row = count_truncation_round<kKind>(shared, part, row, params, round, rank);
    }
  }
  return row;
}

// A cluster's row.
__device__ __forceinline__ void truncate_row(const Params& p, const SlotParams& params,
                                             long long row, int rank, Shared& shared,
                                             float* memory) {
  const Part part{memory, p.length};
  if (threadIdx.x == 0) shared.count = 0;
  arrive_at_cluster();
  const float maximum =
      over_warp(load_part(memory, p.rows.sampled_logits(row, params.flags),
                          static_cast<long long>(rank) * p.length, p.length, p.rows.own),
                Larger());
  wait_for_cluster();  // all blocks have started
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kBlocks) *address_in_block(&shared.warp_maxima[rank * kWarps + warp], lane) = maximum;
  sync_cluster();

  const bool few = params.top_k < kGroups;
  find_bound(shared, few && params.top_k > 0 ? params.top_k : kGroupsWithoutTopK);
  TruncationState known = initial_state(order_key(shared.maximum), params);
  float* threshold = p.thresholds + row;
  if (known.active == 0 || (params.top_k == 0 && params.top_p == 0)) {
    if (rank == 0 && threadIdx.x == 0) *threshold = value_of_key(known.threshold);
    return;
  }
  if (few) {
    list_part(shared, part, known, params, shared.bound, rank);
    sync_cluster();
    unsigned long long mass = 0, total = 0;
    unsigned count = 0;
    for (const Listed& listed : shared.listed) {
      mass += listed.mass;
      total += listed.total;
      count += listed.count;
    }
    const bool all_there =
        params.top_k > 0 || mass >= wanted_of(total, params, TruncationKind::top_p);
    if (count <= kListed && all_there) {
      if (rank == 0) gather_lists(shared);
      sync_cluster();  // no block may exit before its list has been read
      if (rank != 0) return;
      sort_keys(shared.keys, count);
      choose_of_list(shared, known, params, count, total, threshold);
      return;
    }
  }
  known = count_rounds<TruncationKind::top_k>(shared, part, known, params, rank);
  known = count_rounds<TruncationKind::top_p>(shared, part, known, params, rank);
  if (rank == 0 && threadIdx.x == 0) *threshold = value_of_key(known.threshold);
}

#endif

__global__ void __launch_bounds__(kThreads, 2) top_k_top_p_kernel(const Params p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  pdl_begin();
  const long long row = blockIdx.x / kBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int slot = p.rows.slots[row];
  if (slot < 0 || !truncates(p.rows.params[slot])) {
    if (rank == 0 && threadIdx.x == 0) p.thresholds[row] = value_of_key(kLowestKey);
    return;
  }
  truncate_row(p, p.rows.params[slot], row, rank, shared,
               reinterpret_cast<float*>(memory + sizeof(Shared)));
#endif
}

}  // namespace
}  // namespace hopper

bool top_k_top_p_sm90(const TopKTopP& args, Stream& stream) {
  using namespace hopper;
  if (!runs_sm90a()) return false;
  const SamplingRowsView rows(args.rows);
  const long long length = std::max<long long>(4, (rows.own + 4 * kBlocks - 1) / (4 * kBlocks) * 4);
  const std::size_t bytes = sizeof(Shared) + length * sizeof(float);
  const int max_bytes = nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (bytes > static_cast<std::size_t>(max_bytes)) return false;
  nvllm::cuda::check(
      cudaFuncSetAttribute(top_k_top_p_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes)),
      "preparing top_k_top_p");
  const Params p{rows, args.thresholds.as<float>(), static_cast<int>(length)};
  launch_with_pdl(
      "launching top_k_top_p", top_k_top_p_kernel,
      LaunchShape{dim3(static_cast<unsigned>(rows.rows) * kBlocks), dim3(kThreads), bytes, kBlocks},
      nvllm::cuda::native(stream), p);
  return true;
}

}  // namespace nvllm::kernels::cuda
