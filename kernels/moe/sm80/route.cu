// The router on the GPU. A warp selects the experts of a row: its lanes hold the row's logits as
// order-preserving keys, and take the maximum k times. Then all entries are sorted by expert
// without atomics, so the order is deterministic: few entries in one block, with a count per expert
// and chunk of 32 entries; many with one block per expert, which scans all of them.
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/moe/backends.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/sm80/top_k_experts.cuh"

namespace nvllm::kernels::cuda {
namespace {

struct Params {
  const float* logits;
  float* weights;
  int *start, *source_rows, *entries;
  int rows, experts, k;
  bool renormalize;
  const void* scales;  // of experts, of this type; nullptr: all are 1
  DType scale_type;

  explicit Params(const Route& args)
      : logits(args.logits.as<float>()),
        weights(args.weights.as<float>()),
        start(args.expert_start.as<int>()),
        source_rows(args.source_rows.as<int>()),
        entries(args.entries.as<int>()),
        rows(static_cast<int>(args.weights.shape[0])),
        experts(static_cast<int>(args.logits.shape[1])),
        k(static_cast<int>(args.weights.shape[1])),
        renormalize(args.renormalize),
        scales(args.scales.data),
        scale_type(args.scales.dtype) {}

  __device__ __forceinline__ float scale_of(int expert) const {
    switch (scale_type) {
      case DType::f32: return static_cast<const float*>(scales)[expert];
      case DType::bf16: return widen(static_cast<const Bf16*>(scales)[expert]);
      default: return widen(static_cast<const F16*>(scales)[expert]);
    }
  }
};

// --- the experts of a row
// -------------------------------------------------------------------------

// Called by one warp; `chosen` receives the row's k experts.
template <int kPerLane>
__device__ __forceinline__ void choose(const Params& p, int row, int* chosen) {
  const int lane = threadIdx.x % 32;
  float* const weights = p.weights + static_cast<long long>(row) * p.k;
  const float divisor =
      select_top_k_experts<kPerLane>(p.logits + static_cast<long long>(row) * p.experts, p.experts,
                                     p.k, p.renormalize, [&](int j, float exp_logit, int expert) {
                                       if (lane == j % 32)
                                         weights[j] = exp_logit, chosen[j] = expert;
                                     });
  for (int j = lane; j < p.k; j += 32) {
    const float weight = weights[j] / divisor;
    weights[j] = p.scales == nullptr ? weight : weight * p.scale_of(chosen[j]);
  }
}

constexpr int kChooseWarps = 4;

template <int kPerLane>
__global__ void __launch_bounds__(kChooseWarps * 32) choose_kernel(const Params p) {
  pdl_begin();
  const int row = blockIdx.x * kChooseWarps + threadIdx.x / 32;
  if (row < p.rows) choose<kPerLane>(p, row, p.entries + static_cast<long long>(row) * p.k);
}

// --- few entries: sorted by one block
// -------------------------------------------------------------

constexpr int kSortThreads = 1024, kSortWarps = kSortThreads / 32;
constexpr int kMaxSortEntries = kSortThreads, kMaxSortExperts = 256;
constexpr int kMaxFusedRows = 16;  // for which one block is fast enough to select the experts, too

// The sum of the values of the preceding lanes.
__device__ __forceinline__ int sum_before(int value) {
  const int lane = threadIdx.x % 32;
  int sum = value;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int other = __shfl_up_sync(~0u, sum, lanes);
    if (lane >= lanes) sum += other;
  }
  return sum - value;
}

// Each thread has one entry, for this expert; -1: none.
__device__ __forceinline__ void sort_entries(const Params& p, int expert) {
  // Per expert and chunk of 32: first the number of entries in the chunk, then the prefix sum.
  __shared__ unsigned short counts[kSortWarps][kMaxSortExperts];
  __shared__ int first[kMaxSortExperts], sums[kMaxSortExperts / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int entry = threadIdx.x, entries = p.rows * p.k, chunks = (entries + 31) / 32;
  for (int i = threadIdx.x; i < chunks * kMaxSortExperts; i += kSortThreads) {
    counts[i / kMaxSortExperts][i % kMaxSortExperts] = 0;
  }
  const unsigned same = __match_any_sync(~0u, expert);
  const int ahead = __popc(same & ((1u << lane) - 1));
  __syncthreads();
  if (expert >= 0 && ahead == 0) {
    counts[warp][expert] = static_cast<unsigned short>(__popc(same));
  }
  __syncthreads();

  // The first threads have one expert each.
  const int own = threadIdx.x;
  int total = 0, before = 0;
  if (own < kMaxSortExperts) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int count = counts[chunk][own];
      counts[chunk][own] = static_cast<unsigned short>(total);
      total += count;
    }
    before = sum_before(total);
    if (lane == 31) sums[warp] = before + total;
  }
  __syncthreads();
  if (own < kMaxSortExperts) {
    for (int other = 0; other < warp; ++other) before += sums[other];
    first[own] = before;
    if (own < p.experts) p.start[own] = before;
  }
  if (own == 0) p.start[p.experts] = entries;
  __syncthreads();

  if (expert < 0) return;
  const int place = first[expert] + counts[warp][expert] + ahead;
  p.entries[entry] = place;
  p.source_rows[place] = entry / p.k;
}

__global__ void __launch_bounds__(kSortThreads) sort_entries_kernel(const Params p) {
  pdl_begin();
  const int entry = threadIdx.x;
  sort_entries(p, entry < p.rows * p.k ? p.entries[entry] : -1);
}

template <int kPerLane>
__global__ void __launch_bounds__(kSortThreads) route_few_rows_kernel(const Params p) {
  __shared__ int chosen[kMaxSortEntries];
  pdl_begin();
  for (int row = threadIdx.x / 32; row < p.rows; row += kSortWarps) {
    choose<kPerLane>(p, row, chosen + row * p.k);
  }
  __syncthreads();
  const int entry = threadIdx.x;
  sort_entries(p, entry < p.rows * p.k ? chosen[entry] : -1);
}

// --- many entries
// ---------------------------------------------------------------------------------

constexpr int kGatherThreads = 1024, kGatherWarps = kGatherThreads / 32;

// One block per expert: finds where its entries begin, and their rows. p.entries still holds expert
// ids. Warps process consecutive parts of them.
__global__ void __launch_bounds__(kGatherThreads) gather_rows_kernel(const Params p) {
  __shared__ int less_of[kGatherWarps], same_of[kGatherWarps];
  pdl_begin();
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int entries = p.rows * p.k;
  const int part = (entries + kGatherThreads - 1) / kGatherThreads * 32;
  const int begin = min(warp * part, entries), end = min(begin + part, entries);
  int less = 0, same = 0;
#pragma unroll 8
  for (int i = begin + lane; i < end; i += 32) {
    const int other = p.entries[i];
    less += other < expert, same += other == expert;
  }
  less = __reduce_add_sync(~0u, less), same = __reduce_add_sync(~0u, same);
  if (lane == 0) less_of[warp] = less, same_of[warp] = same;
  __syncthreads();
  const int start = __reduce_add_sync(~0u, less_of[lane]);
  int next = start + __reduce_add_sync(~0u, lane < warp ? same_of[lane] : 0);
  if (threadIdx.x == 0) {
    p.start[expert] = start;
    if (expert == 0) p.start[p.experts] = entries;
  }
  if (same == 0) return;
#pragma unroll 4
  for (int i = begin; i < end; i += 32) {
    const int at = i + lane;
    const unsigned mine = __ballot_sync(~0u, at < end && p.entries[at] == expert);
    if (mine >> lane & 1u) p.source_rows[next + __popc(mine & ((1u << lane) - 1))] = at / p.k;
    next += __popc(mine);
  }
}

constexpr int kFindThreads = 256;

// Replaces expert ids by entry indices: an expert's rows are in order.
__global__ void __launch_bounds__(kFindThreads) find_entries_kernel(const Params p) {
  pdl_begin();
  const int i = blockIdx.x * kFindThreads + threadIdx.x;
  if (i >= p.rows * p.k) return;
  const int expert = p.entries[i], row = i / p.k;
  int low = p.start[expert], high = p.start[expert + 1] - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (p.source_rows[middle] < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  p.entries[i] = low;
}

// --- launching
// ------------------------------------------------------------------------------------

template <int kPerLane>
void launch(const Params& p, cudaStream_t stream) {
  const int entries = p.rows * p.k;
  const bool few = entries <= kMaxSortEntries && p.experts <= kMaxSortExperts;
  if (few && p.rows <= kMaxFusedRows) {
    return launch_with_pdl("launching route", route_few_rows_kernel<kPerLane>, dim3(1),
                           dim3(kSortThreads), stream, p);
  }
  if (entries > 0) {
    launch_with_pdl("launching route", choose_kernel<kPerLane>,
                    dim3(blocks_for(p.rows, kChooseWarps)), dim3(kChooseWarps * 32), stream, p);
  }
  if (few) {
    return launch_with_pdl("launching route", sort_entries_kernel, dim3(1), dim3(kSortThreads),
                           stream, p);
  }
  launch_with_pdl("launching route", gather_rows_kernel, dim3(static_cast<unsigned>(p.experts)),
                  dim3(kGatherThreads), stream, p);
  if (entries > 0) {
    launch_with_pdl("launching route", find_entries_kernel, dim3(blocks_for(entries, kFindThreads)),
                    dim3(kFindThreads), stream, p);
  }
}

}  // namespace

void route(const Route& args, Stream& stream) {
  const Params p(args);
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (p.experts <= 128) return launch<4>(p, native);
  if (p.experts <= 256) return launch<8>(p, native);
  static_assert(kMaxExperts == 1024);
  launch<32>(p, native);
}

}  // namespace nvllm::kernels::cuda
