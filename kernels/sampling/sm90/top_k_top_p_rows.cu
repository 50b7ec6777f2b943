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
namespace top_k_top_p_sm90 {
namespace {

struct Params {
  SamplingRowsView rows;
  float* thresholds;
  int length;  // of a block's part of a row: a multiple of 4
};

#if __CUDA_ARCH__ >= 900

// All blocks together: what is known of the row after one more round.
template <TruncationKind kKind>
__device__ __forceinline__ TruncationState count_truncation_round(Shared& shared, const Part& part, TruncationState row,
                                                 const SlotParams& params, int round, int rank) {
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

  // This block's bins: the first block has the highest. Two threads add up one.
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
__device__ __forceinline__ TruncationState count_rounds(Shared& shared, const Part& part, TruncationState row,
                                                  const SlotParams& params, int rank) {
  for (int round = 0; round < kTruncationRounds; ++round) {
    if (takes_part(row, params, kKind, round)) {
      row = count_truncation_round<kKind>(shared, part, row, params, round, rank);
    }
  }
  return row;
}

// A cluster's row.
__device__ __forceinline__ void truncate_row(const Params& p, const SlotParams& params, long long row,
                                           int rank, Shared& shared, float* memory) {
  const Part part{memory, p.length};
  if (threadIdx.x == 0) shared.count = 0;
  arrive_at_cluster();
  const float maximum =
      over_warp(load_part(memory, p.rows.sampled_logits(row, params.flags),
                          static_cast<long long>(rank) * p.length, p.length, p.rows.own),
                Larger());
  wait_for_cluster();  // all blocks are there
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kBlocks) *address_in_block(&shared.max_of[rank * kWarps + warp], lane) = maximum;
  sync_cluster();

  const bool few = params.top_k < kGroups;
  find_bound(shared, few && params.top_k > 0 ? params.top_k : kGroupsWithoutTopK);
  TruncationState known = premixed(order_key(shared.maximum), params);
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
    const bool all_there = params.top_k > 0 || mass >= wanted_of(total, params, TruncationKind::top_p);
    if (count <= kListed && all_there) {
      if (rank == 0) gather_lists(shared);
      sync_cluster();  // nobody leaves before its list was read
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
  begin_after_previous_kernel();
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

bool launch(const TopKTopP& args, Stream& stream) {
  if (nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  const SamplingRowsView rows(args.rows);
  const long long length = std::max<long long>(4, (rows.own + 4 * kBlocks - 1) / (4 * kBlocks) * 4);
  const std::size_t bytes = sizeof(Shared) + length * sizeof(float);
  const int most_bytes = nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (bytes > static_cast<std::size_t>(most_bytes)) return false;
  nvllm::cuda::check(
      cudaFuncSetAttribute(top_k_top_p_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes)),
      "preparing top_k_top_p");
  const Params p{rows, args.thresholds.as<float>(), static_cast<int>(length)};
  launch_early(
      "launching top_k_top_p", top_k_top_p_kernel,
      LaunchShape{dim3(static_cast<unsigned>(rows.rows) * kBlocks), dim3(kThreads), bytes, kBlocks},
      nvllm::cuda::native(stream), p);
  return true;
}

}  // namespace
}  // namespace top_k_top_p_sm90

bool top_k_top_p_sm90(const TopKTopP& args, Stream& stream) {
  return top_k_top_p_sm90::launch(args, stream);
}

}  // namespace nvllm::kernels::cuda
