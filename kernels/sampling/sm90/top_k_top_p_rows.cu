// Filtering of whole rows on Hopper: a row lies in the shared memory of a cluster of blocks, which read it once.
//
// Hardly ever more than a few logits can be kept, and a bound tells which: the k-th highest of the highest logits
// that the cluster's warps have. Those that reach it go into a list, which one block sorts (filter_list_sm90.cuh).
// Where the boundary is not among them, for a large k or a flat top_p, all blocks count in rounds, as for parts of
// rows.
#include <algorithm>

#include "kernels/sampling/sm80/top_k_top_p.h"
#include "kernels/sampling/sm90/top_k_top_p_list.cuh"

namespace nvllm::kernels::cuda {
namespace filter_sm90 {
namespace {

struct Params {
  RowsView rows;
  float* thresholds;
  int length;  // of a block's part of a row: a multiple of 4
};

#if __CUDA_ARCH__ >= 900

// All blocks together: what is known of the row after one more round.
template <FilterKind kKind>
__device__ __forceinline__ FilterRow count_round(Shared& shared, const Part& part, FilterRow row,
                                                 const SlotRules& rules, int round, int rank) {
  for (int bin = threadIdx.x; bin < kFilterBins; bin += kThreads) {
    shared.sums.low[bin] = shared.sums.high[bin] = 0;
  }
  __syncthreads();
  const KeyRange keys = keys_of_round(row, round);
  const int shift = filter_shift(round);
  const unsigned mask = filter_mask(round);
  part.for_each([&](const float4& four) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float logit = element(four, e);
      const unsigned key = order_key(logit);
      if (!keys.holds(key)) continue;
      const unsigned bin = key >> shift & mask;
      if constexpr (kKind == FilterKind::top_k) {
        atomicAdd(shared.sums.low + bin, 1u);
      } else {
        shared.sums.add(bin, mass_of(distance(logit, row.maximum, rules)));
      }
    }
  });
  sync_cluster();

  // This block's bins: the first block has the highest. Two threads add up one.
  constexpr int kBlockBins = static_cast<int>(kFilterBins) / kBlocks;
  static_assert(kThreads == 2 * kBlockBins);
  const int half = static_cast<int>(threadIdx.x) % 2;
  const int bin = static_cast<int>(kFilterBins) - 1 - rank * kBlockBins - threadIdx.x / 2;
  unsigned long long here = 0;
#pragma unroll
  for (int block = 0; block < kBlocks / 2; ++block) {
    here += place_in(&shared.sums, half * kBlocks / 2 + block)->at(bin);
  }
  here += __shfl_xor_sync(kAllLanes, here, 1);
  if (half != 0) here = 0;
  const Sums sums(here, shared.scratch);
  if (threadIdx.x < kBlocks) {
    *place_in(&shared.totals[rank], static_cast<int>(threadIdx.x)) = sums.all;
  }
  sync_cluster();

  unsigned long long before = 0, total = 0;
  for (int block = 0; block < kBlocks; ++block) {
    if (block < rank) before += shared.totals[block];
    total += shared.totals[block];
  }
  if (round == 0) row.wanted = wanted_of(total, rules, kKind);
  if (row.wanted == 0) return row;
  const unsigned long long up_to = before + sums.up_to, above = up_to - here;
  if (above < row.wanted && up_to >= row.wanted) {
    for (int block = 0; block < kBlocks; ++block) {
      *place_in(&shared.bin, block) = static_cast<unsigned>(bin);
      *place_in(&shared.above, block) = above;
    }
  }
  sync_cluster();
  return chosen(row, shared.bin, shared.above, round);
}

template <FilterKind kKind>
__device__ __forceinline__ FilterRow count_rounds(Shared& shared, const Part& part, FilterRow row,
                                                  const SlotRules& rules, int rank) {
  for (int round = 0; round < kFilterRounds; ++round) {
    if (takes_part(row, rules, kKind, round)) {
      row = count_round<kKind>(shared, part, row, rules, round, rank);
    }
  }
  return row;
}

// A cluster's row.
__device__ __forceinline__ void filter_row(const Params& p, const SlotRules& rules, long long row,
                                           int rank, Shared& shared, float* memory) {
  const Part part{memory, p.length};
  if (threadIdx.x == 0) shared.count = 0;
  arrive_at_cluster();
  const float most =
      over_warp(load_part(memory, p.rows.judged(row, rules.flags),
                          static_cast<long long>(rank) * p.length, p.length, p.rows.own),
                Larger());
  wait_for_cluster();  // all blocks are there
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kBlocks) *place_in(&shared.highest[rank * kWarps + warp], lane) = most;
  sync_cluster();

  const bool few = rules.top_k < kGroups;
  find_bound(shared, few && rules.top_k > 0 ? rules.top_k : kGroupsWithoutTopK);
  FilterRow known = begun(order_key(shared.most), rules);
  float* threshold = p.thresholds + row;
  if (known.active == 0 || (rules.top_k == 0 && rules.top_p == 0)) {
    if (rank == 0 && threadIdx.x == 0) *threshold = value_of_key(known.threshold);
    return;
  }
  if (few) {
    list_part(shared, part, known, rules, shared.bound, rank);
    sync_cluster();
    unsigned long long mass = 0, total = 0;
    unsigned count = 0;
    for (const Listed& listed : shared.listed) {
      mass += listed.mass;
      total += listed.total;
      count += listed.count;
    }
    const bool all_there = rules.top_k > 0 || mass >= wanted_of(total, rules, FilterKind::top_p);
    if (count <= kListed && all_there) {
      if (rank == 0) gather_lists(shared);
      sync_cluster();  // nobody leaves before its list was read
      if (rank != 0) return;
      sort_keys(shared.keys, count);
      choose_of_list(shared, known, rules, count, total, threshold);
      return;
    }
  }
  known = count_rounds<FilterKind::top_k>(shared, part, known, rules, rank);
  known = count_rounds<FilterKind::top_p>(shared, part, known, rules, rank);
  if (rank == 0 && threadIdx.x == 0) *threshold = value_of_key(known.threshold);
}

#endif

__global__ void __launch_bounds__(kThreads, 2) filter_rows_kernel(const Params p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  begin_after_previous_kernel();
  const long long row = blockIdx.x / kBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int slot = p.rows.slots[row];
  if (slot < 0 || !filters(p.rows.rules[slot])) {
    if (rank == 0 && threadIdx.x == 0) p.thresholds[row] = value_of_key(kLowestKey);
    return;
  }
  filter_row(p, p.rows.rules[slot], row, rank, shared,
             reinterpret_cast<float*>(memory + sizeof(Shared)));
#endif
}

bool launch(const FilterLogits& args, Stream& stream) {
  if (nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  const RowsView rows(args.rows);
  const long long length = std::max<long long>(4, (rows.own + 4 * kBlocks - 1) / (4 * kBlocks) * 4);
  const std::size_t bytes = sizeof(Shared) + length * sizeof(float);
  const int most_bytes = nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (bytes > static_cast<std::size_t>(most_bytes)) return false;
  nvllm::cuda::check(
      cudaFuncSetAttribute(filter_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes)),
      "preparing filter_rows");
  const Params p{rows, args.thresholds.as<float>(), static_cast<int>(length)};
  launch_early(
      "launching filter_rows", filter_rows_kernel,
      LaunchShape{dim3(static_cast<unsigned>(rows.rows) * kBlocks), dim3(kThreads), bytes, kBlocks},
      nvllm::cuda::native(stream), p);
  return true;
}

}  // namespace
}  // namespace filter_sm90

bool filter_rows_sm90(const FilterLogits& args, Stream& stream) {
  return filter_sm90::launch(args, stream);
}

}  // namespace nvllm::kernels::cuda
