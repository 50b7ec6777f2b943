// Truncation by top-k, top-p and min-p on the GPU. The blocks of a row count in shared memory, then
// add their counts to the row's histogram. One block finds the bin of the boundary: if rows are
// whole, the last one to finish counting.
#include <algorithm>

#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"
#include "kernels/sampling/sm80/sampling.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr long long kTile = 8192;  // logits per block

struct Params : TruncationView {
  unsigned tiles;

  explicit Params(const TopKTopP& args)
      : TruncationView(args),
        tiles(static_cast<unsigned>(std::max<long long>(1, (rows.own + kTile - 1) / kTile))) {}

  // nullptr: this row is not truncated.
  __device__ const SlotParams* params_of(long long row) const {
    const int slot = rows.slots[row];
    return slot >= 0 && truncates(rows.params[slot]) ? rows.params + slot : nullptr;
  }
};

// Calls take() with all logits of this block's tile, padded with NaN.
template <typename Take>
__device__ __forceinline__ void for_tile(const Params& p, const float* logits, unsigned tile,
                                         const Take& take) {
  constexpr int kVectors = static_cast<int>(kTile / (4 * kThreads));
  float4 vectors[kVectors];
  const long long first = tile * kTile + threadIdx.x * 4;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    vectors[v] = load_logits(logits, first + v * (4LL * kThreads), p.rows.own);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int e = 0; e < 4; ++e) take(element(vectors[v], e));
  }
}

// Whether this block is the last of its row; it then sees the others' writes. Resets `done` to 0.
__device__ bool is_last_of_row(unsigned* done, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(done, 1u) == blocks - 1;
    if (last) *done = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

__device__ void begin_row(const Params& p, long long row, unsigned maximum) {
  const SlotParams* params = p.params_of(row);
  TruncationState begins;
  begins.threshold = kLowestKey;
  if (params != nullptr) begins = initial_state(maximum, *params);
  p.maxima[row] = 0;
  p.state[row] = begins;
  p.thresholds[row] = value_of_key(begins.threshold);
}

__global__ void __launch_bounds__(kThreads) find_maximum_kernel(const Params p) {
  pdl_begin();
  __shared__ unsigned scratch[kThreads / 32 + 1];
  const long long row = blockIdx.x / p.tiles;
  const bool first_tile = blockIdx.x % p.tiles == 0;
  const SlotParams* params = p.params_of(row);
  if (params == nullptr) {
    if (p.parts == 1 && first_tile && threadIdx.x == 0) begin_row(p, row, 0);
    return;
  }
  unsigned maximum = 0;
  for_tile(p, p.rows.sampled_logits(row, params->flags), blockIdx.x % p.tiles, [&](float logit) {
    const unsigned key = order_key(logit);
    maximum = key > maximum ? key : maximum;
  });
  maximum = over_block(maximum, Larger(), scratch);
  if (threadIdx.x == 0) atomicMax(p.maxima + row, maximum);
  if (p.parts > 1) return;
  if (!is_last_of_row(&p.state[row].blocks_done, p.tiles) || threadIdx.x != 0) return;
  begin_row(p, row, __ldcg(p.maxima + row));
}

__global__ void begin_truncation_kernel(const Params p) {
  pdl_begin();
  const long long row = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (row >= p.rows.rows) return;
  unsigned maximum = 0;
  for (long long part = 0; part < p.parts; ++part) {
    maximum = Larger()(maximum, p.all_maxima[part * p.rows.rows + row]);
  }
  begin_row(p, row, maximum);
}

// Called by all threads of a block, which have read the row's state: finds the bin of the boundary.
__device__ void choose_bin(const Params& p, long long row, const SlotParams& params,
                           TruncationState known, TruncationKind kind, int round) {
  constexpr int kBinsOfThread = kTruncationBins / kThreads;
  __shared__ unsigned long long warps[kThreads / 32];
  // Thread 0 has the highest bins.
  const int first = static_cast<int>(kTruncationBins) - 1 - threadIdx.x * kBinsOfThread;
  unsigned long long bins[kBinsOfThread] = {}, own = 0;
#pragma unroll
  for (int b = 0; b < kBinsOfThread; ++b) {
    for (long long part = 0; part < p.parts; ++part) {
      bins[b] +=
          __ldcg(p.all_histograms + (part * p.rows.rows + row) * kTruncationBins + first - b);
    }
    own += bins[b];
  }
  // The total of the bins up to and including this thread's.
  unsigned long long up_to = own;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned long long before = __shfl_up_sync(kAllLanes, up_to, distance);
    if (lane >= distance) up_to += before;
  }
  if (lane == 31) warps[warp] = up_to;
  __syncthreads();  // also: all threads have read the histograms
  unsigned long long total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) up_to += warps[w];
    total += warps[w];
  }
  for (int b = 0; b < kBinsOfThread; ++b) p.histograms[row * kTruncationBins + first - b] = 0;

  known.blocks_done = 0;
  if (round == 0) known.wanted = wanted_of(total, params, kind);
  if (known.wanted == 0) {
    if (threadIdx.x == 0) p.state[row] = known;
    return;
  }
  unsigned long long above = up_to - own;
  if (above >= known.wanted || up_to < known.wanted) return;
#pragma unroll
  for (int b = 0; b < kBinsOfThread; ++b) {
    if (above + bins[b] >= known.wanted) {
      known = chosen(known, first - b, above, round);
      p.state[row] = known;
      p.thresholds[row] = value_of_key(known.threshold);
      return;
    }
    above += bins[b];
  }
}

template <TruncationKind kKind>
__global__ void __launch_bounds__(kThreads)
    count_truncation_round_kernel(const Params p, int round) {
  pdl_begin();
  __shared__ SharedSums<kTruncationBins> sums;
  const long long row = blockIdx.x / p.tiles;
  const SlotParams* params = p.params_of(row);
  if (params == nullptr) return;
  const TruncationState known = p.state[row];
  if (!takes_part(known, *params, kKind, round)) return;
  for (int bin = threadIdx.x; bin < kTruncationBins; bin += kThreads) {
    sums.low[bin] = sums.high[bin] = 0;
  }
  __syncthreads();
  const KeyRange keys = keys_of_round(known, round);
  const int shift = truncation_shift(round);
  const unsigned mask = truncation_mask(round);
  for_tile(p, p.rows.sampled_logits(row, params->flags), blockIdx.x % p.tiles, [&](float logit) {
    const unsigned key = order_key(logit);
    if (!keys.holds(key)) return;
    if constexpr (kKind == TruncationKind::top_k) {
      atomicAdd(sums.low + (key >> shift & mask), 1u);
    } else {
      sums.add(key >> shift & mask, mass_of(distance(logit, known.maximum, *params)));
    }
  });
  __syncthreads();
  for (int bin = threadIdx.x; bin < kTruncationBins; bin += kThreads) {
    const unsigned long long sum = sums.at(bin);
    if (sum != 0) atomicAdd(p.histograms + row * kTruncationBins + bin, sum);
  }
  if (p.parts > 1) return;
  if (!is_last_of_row(&p.state[row].blocks_done, p.tiles)) return;
  choose_bin(p, row, *params, known, kKind, round);
}

__global__ void __launch_bounds__(kThreads)
    choose_truncation_round_kernel(const Params p, TruncationKind kind, int round) {
  pdl_begin();
  const long long row = blockIdx.x;
  const SlotParams* params = p.params_of(row);
  if (params == nullptr) return;
  const TruncationState known = p.state[row];
  if (!takes_part(known, *params, kind, round)) return;
  choose_bin(p, row, *params, known, kind, round);
}

unsigned all_tiles(const Params& p) {
  return static_cast<unsigned>(p.rows.rows) * p.tiles;
}

}  // namespace

void find_maximum(const TopKTopP& args, Stream& stream) {
  const Params p(args);
  launch_with_pdl("launching find_maximum", find_maximum_kernel, all_tiles(p), kThreads,
                  nvllm::cuda::native(stream), p);
}

void begin_truncation(const TopKTopP& args, Stream& stream) {
  constexpr int kBeginThreads = 64;
  const Params p(args);
  launch_with_pdl("launching begin_truncation", begin_truncation_kernel,
                  blocks_for(p.rows.rows, kBeginThreads), kBeginThreads,
                  nvllm::cuda::native(stream), p);
}

void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  const Params p(args);
  const auto kernel = kind == TruncationKind::top_k
                          ? count_truncation_round_kernel<TruncationKind::top_k>
                          : count_truncation_round_kernel<TruncationKind::top_p>;
  launch_with_pdl("launching count_truncation_round", kernel, all_tiles(p), kThreads,
                  nvllm::cuda::native(stream), p, round);
}

void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  const Params p(args);
  launch_with_pdl("launching choose_truncation_round", choose_truncation_round_kernel,
                  static_cast<unsigned>(p.rows.rows), kThreads, nvllm::cuda::native(stream), p,
                  kind, round);
}

}  // namespace nvllm::kernels::cuda
