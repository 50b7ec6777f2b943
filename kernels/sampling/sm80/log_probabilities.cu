// Log-probabilities on the GPU: one block per row, which reads it several times, from the second
// time on from the L2 cache. The highest logits are among those that reach the k-th largest of the
// threads' own maxima. These are few unless many logits are equal; only then the k-th largest logit
// is searched exactly.
#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"
#include "kernels/sampling/sm80/sampling.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;

using Params = LogProbabilitiesView;

// Calls take(logit, element) for all logits of a row, distributed over the block's threads.
template <typename Take>
__device__ __forceinline__ void for_row(const float* row, long long count, const Take& take) {
  constexpr int kVectors = 4;
  for (long long first = 0; first < count; first += kVectors * 4LL * kThreads) {
    float4 vectors[kVectors];
    long long at[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      at[v] = first + (v * kThreads + static_cast<int>(threadIdx.x)) * 4LL;
      vectors[v] = load_logits(row, at[v], count);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (at[v] + e < count) take(plain_logit(element(vectors[v], e)), at[v] + e);
      }
    }
  }
}

constexpr int kMaxFound = 2 * kMaxAlternatives;
static_assert(kMaxAlternatives <= kThreads);

struct Shared {
  unsigned bins[kBins];
  unsigned keys[kThreads];
  unsigned long long found[kMaxFound];  // packed as by candidate()
  unsigned found_count;                 // may exceed the capacity
  float floats[kThreads / 32 + 1];
  unsigned counts[kThreads / 32 + 1];
  unsigned prefix, wanted, minimum;

  __device__ void find(unsigned long long one) {
    const unsigned at = atomicAdd(&found_count, 1u);
    if (at < kMaxFound) found[at] = one;
  }
};

// A key that the highest logits of at least `wanted` threads reach, 0 < wanted <= kThreads: the
// row's `wanted` best are then among the few that reach it.
__device__ unsigned reached_by(float highest_of_thread, unsigned wanted, Shared& shared) {
  const unsigned mine = order_key(highest_of_thread);
  shared.keys[threadIdx.x] = mine;
  __syncthreads();
  unsigned better = 0;  // ties by ascending thread
  for (unsigned other = 0; other < kThreads; ++other) {
    const unsigned theirs = shared.keys[other];
    better += theirs > mine || (theirs == mine && other < threadIdx.x);
  }
  if (better == wanted - 1) shared.minimum = mine;
  __syncthreads();
  return shared.minimum;
}

// The order key of the `wanted`-th largest of `count` logits, count >= wanted > 0, and how many
// logits equal to it belong to the first `wanted`.
struct Boundary {
  unsigned key, equals;
};

__device__ Boundary boundary_of(const float* row, long long count, unsigned wanted,
                                Shared& shared) {
  unsigned prefix = 0;
  int known = 0;  // bits
  for (const int bits : {11, 11, 10}) {
    const int shift = 32 - known - bits;
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) shared.bins[bin] = 0;
    __syncthreads();
    for_row(row, count, [&](float logit, long long) {
      const unsigned key = order_key(logit);
      if (known != 0 && key >> (32 - known) != prefix) return;
      atomicAdd(shared.bins + (key >> shift & ((1u << bits) - 1)), 1u);
    });
    __syncthreads();
    if (threadIdx.x < 32) {
      // Lane 0 has the highest bins.
      constexpr int kOfLane = kBins / 32;
      const int first = kBins - 1 - static_cast<int>(threadIdx.x) * kOfLane;
      unsigned own = 0;
      for (int b = 0; b < kOfLane; ++b) own += shared.bins[first - b];
      unsigned up_to = own;
      for (int distance = 1; distance < 32; distance *= 2) {
        const unsigned before = __shfl_up_sync(kAllLanes, up_to, distance);
        if (static_cast<int>(threadIdx.x) >= distance) up_to += before;
      }
      unsigned above = up_to - own;
      if (above < wanted && up_to >= wanted) {
        int bin = first;
        for (; above + shared.bins[bin] < wanted; --bin) above += shared.bins[bin];
        shared.prefix = prefix << bits | static_cast<unsigned>(bin);
        shared.wanted = wanted - above;
      }
    }
    __syncthreads();
    prefix = shared.prefix;
    wanted = shared.wanted;
    known += bits;
  }
  return {prefix, wanted};
}

// The end of the range with exactly `wanted` elements of this key: the lowest ids.
__device__ long long end_of_equals(const float* row, long long count, const Boundary& boundary,
                                   Shared& shared) {
  long long low = 0, high = count;  // `low` elements are too few, `high` are enough
  while (high - low > 1) {
    const long long middle = low + (high - low) / 2;
    unsigned equals = 0;
    for_row(row, middle,
            [&](float logit, long long) { equals += order_key(logit) == boundary.key; });
    equals = over_block(equals, Sum(), shared.counts);
    (equals >= boundary.equals ? high : low) = middle;
  }
  return high;
}

// The `wanted` best of the row by their exact boundary, if too many logits reach the bound of the
// threads' maxima.
__device__ void find_exactly(const Params& p, const float* row, unsigned wanted, Shared& shared) {
  const Boundary boundary = boundary_of(row, p.rows.own, wanted, shared);
  unsigned equals = 0;
  for_row(row, p.rows.own,
          [&](float logit, long long) { equals += order_key(logit) == boundary.key; });
  equals = over_block(equals, Sum(), shared.counts);
  const long long end =
      equals == boundary.equals ? p.rows.own : end_of_equals(row, p.rows.own, boundary, shared);
  if (threadIdx.x == 0) shared.found_count = 0;
  __syncthreads();
  for_row(row, p.rows.own, [&](float logit, long long i) {
    const unsigned key = order_key(logit);
    if (key < boundary.key || (key == boundary.key && i >= end)) return;
    shared.find(candidate(logit, p.rows.first_id + static_cast<std::uint32_t>(i)));
  });
  __syncthreads();
}

// Writes the `wanted` best of those found, in order.
__device__ void write_best(const Params& p, unsigned wanted, const RecordView& record,
                           const Shared& shared) {
  for (unsigned i = threadIdx.x; i < shared.found_count; i += kThreads) {
    const unsigned long long mine = shared.found[i];
    unsigned better = 0;
    for (unsigned other = 0; other < shared.found_count; ++other) {
      better += shared.found[other] > mine;
    }
    if (better < wanted) record.set_alternative(better, mine);
  }
  for (long long i = wanted + threadIdx.x; i < p.alternatives; i += kThreads) {
    record.set_alternative(i, 0);
  }
}

__global__ void __launch_bounds__(kThreads) summarize_logits_kernel(const Params p) {
  pdl_begin();
  __shared__ Shared shared;
  const long long row = blockIdx.x;
  const int token = p.tokens[row];
  if (!wants_logprobs(p.rows, row, token)) return;
  const float* logits = p.rows.logits + row * p.rows.stride;
  const RecordView record{p.records + row * logprob_record_words(p.alternatives), p.alternatives};
  const auto wanted =
      static_cast<unsigned>(p.alternatives < p.rows.own ? p.alternatives : p.rows.own);

  float mine = kMinusInfinity;
  for_row(logits, p.rows.own, [&](float logit, long long) { mine = Larger()(mine, logit); });
  const float maximum = over_block(mine, Larger(), shared.floats);
  if (threadIdx.x == 0) shared.found_count = 0;
  const unsigned minimum = wanted > 0 ? reached_by(mine, wanted, shared) : 0xffffffffu;
  float sum = 0;
  for_row(logits, p.rows.own, [&](float logit, long long i) {
    sum += expf(logit_distance(logit, maximum));
    if (order_key(logit) < minimum) return;
    shared.find(candidate(logit, p.rows.first_id + static_cast<std::uint32_t>(i)));
  });
  sum = over_block(sum, Sum(), shared.floats);  // also: all candidates have been found
  if (threadIdx.x == 0) {
    record.set(0, maximum);
    record.set(1, sum);
    const long long own = static_cast<long long>(token) - p.rows.first_id;
    record.set(2, own >= 0 && own < p.rows.own ? plain_logit(logits[own]) : no_logit());
  }
  if (wanted > 0 && shared.found_count > kMaxFound) find_exactly(p, logits, wanted, shared);
  write_best(p, wanted, record, shared);
}

// Every part's alternatives are sorted; each one finds its rank among all parts.
__device__ void combine_best(const Params& p, long long row, const RowRecords& all, float maximum,
                             float log_sum) {
  const long long count = p.parts * p.alternatives;
  int* ids = p.top_ids + row * p.alternatives;
  float* logprobs = p.top_logprobs + row * p.alternatives;
  for (long long i = threadIdx.x; i < p.alternatives; i += kThreads) {
    ids[i] = -1;
    logprobs[i] = kMinusInfinity;
  }
  __syncthreads();
  for (long long i = threadIdx.x; i < count; i += kThreads) {
    const std::uint64_t mine = all.of(i / p.alternatives).alternative(i % p.alternatives);
    if (mine == 0) continue;
    long long place = 0;
    for (long long part = 0; part < p.parts; ++part) {
      const RecordView theirs = all.of(part);
      // Counts how many of theirs are better, by bisection.
      long long better = 0, not_better = p.alternatives;
      while (better < not_better) {
        const long long middle = (better + not_better) / 2;
        if (theirs.alternative(middle) > mine) {
          better = middle + 1;
        } else {
          not_better = middle;
        }
      }
      place += better;
    }
    if (place >= p.alternatives) continue;
    ids[place] = static_cast<int>(id_of_candidate(mine));
    logprobs[place] = logit_distance(score_of_candidate(mine), maximum) - log_sum;
  }
}

__global__ void __launch_bounds__(kThreads) log_probabilities_kernel(const Params p) {
  pdl_begin();
  __shared__ unsigned scratch[kThreads / 32 + 1];
  const long long row = blockIdx.x;
  if (!wants_logprobs(p.rows, row, p.tokens[row])) return;
  const RowRecords all{p.all_records, p.parts, p.rows.rows, row, p.alternatives};
  const float maximum = all.max_logit(), logit = all.token_logit();
  float sum = 0;
  for (long long part = 0; part < p.parts; ++part) {
    const RecordView record = all.of(part);
    sum = fused(record.sum(), expf(logit_distance(record.max_logit(), maximum)), sum);
  }
  const float log_sum = logf(sum);
  unsigned higher = 0;
  for_row(p.rows.logits + row * p.rows.stride, p.rows.own,
          [&](float other, long long) { higher += other > logit; });
  higher = over_block(higher, Sum(), scratch);
  if (threadIdx.x == 0) {
    p.logprob[row] = logit_distance(logit, maximum) - log_sum;
    p.higher[row] = static_cast<int>(higher);
    if (p.parts == 1) p.rank[row] = static_cast<int>(higher) + 1;
  }
  combine_best(p, row, all, maximum, log_sum);
}

__global__ void rank_tokens_kernel(const Params p) {
  pdl_begin();
  const long long row = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (row >= p.rows.rows || !wants_logprobs(p.rows, row, p.tokens[row])) return;
  int sum = 1;
  for (long long part = 0; part < p.parts; ++part) sum += p.all_higher[part * p.rows.rows + row];
  p.rank[row] = sum;
}

}  // namespace

void summarize_logits(const LogProbabilities& args, Stream& stream) {
  const Params p(args);
  launch_with_pdl("launching summarize_logits", summarize_logits_kernel,
                  static_cast<unsigned>(p.rows.rows), kThreads, nvllm::cuda::native(stream), p);
}

void log_probabilities(const LogProbabilities& args, Stream& stream) {
  const Params p(args);
  launch_with_pdl("launching log_probabilities", log_probabilities_kernel,
                  static_cast<unsigned>(p.rows.rows), kThreads, nvllm::cuda::native(stream), p);
}

void rank_tokens(const LogProbabilities& args, Stream& stream) {
  constexpr int kRankThreads = 64;
  const Params p(args);
  launch_with_pdl("launching rank_tokens", rank_tokens_kernel,
                  blocks_for(p.rows.rows, kRankThreads), kRankThreads, nvllm::cuda::native(stream),
                  p);
}

}  // namespace nvllm::kernels::cuda
