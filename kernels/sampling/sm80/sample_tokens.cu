// Sampling on the GPU. The logits of all rows are cut into tiles, distributed evenly over blocks in
// contiguous ranges; the last block of a row to finish writes the token.
//
// Few tokens can win, and noise is expensive. So upper bounds determine which could beat the best
// one that the block has seen: first the highest of four logits plus the maximum noise, then each
// logit plus a bound from the upper bits of its noise. Exact noise is computed only for the
// remaining ones, of which there are hardly any after a block's first tile.
#include <algorithm>

#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sm80/sampling.cuh"

namespace nvllm::kernels::cuda {
namespace {

// A few rows are split over small blocks with little work each.
constexpr int kFewRows = 3;
constexpr int kRoom =
    1280;  // per multiprocessor: 1024 takes as long, 1536 takes longer for 16 rows
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Params {
  SamplingRowsView rows;
  const float* thresholds;      // nullptr: none
  unsigned long long* scratch;  // per row: the best so far, and the number of finished tiles
  SampledTokens sampled;
  unsigned tiles;        // of a row
  unsigned share, more;  // tiles per block; `more` blocks have one more
};

// NaN only if all are NaN.
__device__ __forceinline__ float max_of(const float4& four) {
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}
// The index of the first occurrence of a value.
__device__ __forceinline__ int place_of(float value, const float4& four) {
  return four.x == value ? 0 : four.y == value ? 1 : four.z == value ? 2 : 3;
}

// The highest of the logits that a thread processes, four at a time.
class Greedy {
 public:
  __device__ __forceinline__ bool hopeless(const float4&) const { return false; }
  __device__ __forceinline__ void take(const float4& logits, std::uint32_t id) {
    const std::uint32_t key = order_key(max_of(logits));
    if (key > key_) key_ = key, id_ = id, logits_ = logits;
  }
  __device__ __forceinline__ unsigned long long best() const {
    if (key_ == 0) return 0;
    return candidate(value_of_key(key_), id_ + place_of(value_of_key(key_), logits_));
  }

 private:
  std::uint32_t key_ = 0, id_ = 0;  // of the first of
  float4 logits_{};                 // those with the highest
};

// The highest of logit / temperature + noise. All lanes of a warp call together.
class Random {
 public:
  // best_key: key of the best score that the block has seen; in shared memory, initially 0.
  __device__ Random(const SlotParams& params, int position, float threshold, unsigned& best_key)
      : noise_(noise_keys(params.seed, position)),
        factor_(params.inverse_temperature),
        threshold_(threshold),
        best_key_(best_key) {}

  // Whether none of the warp's logits can win, whatever their noise.
  __device__ __forceinline__ bool hopeless(const float4& logits) {
    look();
    const float maximum = max_of(logits);
    return !__any_sync(kAllLanes,
                       maximum >= threshold_ && fused(maximum, factor_, kMaxGumbel) >= to_beat_);
  }

  // id: a multiple of four.
  __device__ __forceinline__ void take(const float4& logits, std::uint32_t id) {
    const std::uint32_t premixed = noise_.premixed(id);
    float4 reach{fused(logits.x, factor_, gumbel_noise_bound(noise_, premixed)),
                 fused(logits.y, factor_, gumbel_noise_bound(noise_, premixed ^ 1)),
                 fused(logits.z, factor_, gumbel_noise_bound(noise_, premixed ^ 2)),
                 fused(logits.w, factor_, gumbel_noise_bound(noise_, premixed ^ 3))};
    // Each lane evaluates its most promising one, which usually rules out the others.
    for (float maximum = max_of(reach); __any_sync(kAllLanes, maximum >= to_beat_);
         maximum = max_of(reach)) {
      if (maximum >= to_beat_) {
        const int e = place_of(maximum, reach);
        const float logit = element(logits, e);
        const float score = fused(logit, factor_, gumbel(noise_.bits(id + e)));
        if (logit >= threshold_) {
          best_ = Larger()(best_, static_cast<unsigned long long>(candidate(score, id + e)));
          atomicMax(&best_key_, order_key(score));
        }
        const float done = no_logit();
        reach = {e == 0 ? done : reach.x, e == 1 ? done : reach.y, e == 2 ? done : reach.z,
                 e == 3 ? done : reach.w};
      }
      __syncwarp();
      look();
    }
  }
  __device__ __forceinline__ unsigned long long best() const { return best_; }

 private:
  __device__ __forceinline__ void look() {
    to_beat_ = value_of_key(*static_cast<volatile unsigned*>(&best_key_));
  }
  const RandomKeys noise_;
  const float factor_, threshold_;
  unsigned& best_key_;
  float to_beat_ = -kInfinity;
  unsigned long long best_ = 0;
};

// A row's logits in vectors of four at ids that are multiples of four, so the first vector may
// begin before the row does.
class Row {
 public:
  __device__ Row(const float* logits, const SamplingRowsView& rows)
      : logits_(logits),
        own_(rows.own),
        before_(rows.first_id % 4),
        first_id_(rows.first_id - before_) {
    const float* first = logits - before_;
    vectors_ = reinterpret_cast<const float4*>(first);
    if ((reinterpret_cast<std::uintptr_t>(first) & 15) != 0) return;
    whole_ = before_ != 0;
    whole_end_ = static_cast<unsigned>((own_ + before_) / 4);
  }

  __device__ __forceinline__ float4 load(unsigned vector) const {
    if (vector >= whole_ && vector < whole_end_) return vectors_[vector];
    const long long i = vector * 4LL - before_;
    return {load(i), load(i + 1), load(i + 2), load(i + 3)};
  }
  __device__ __forceinline__ std::uint32_t id(unsigned vector) const {
    return first_id_ + vector * 4;
  }

 private:
  __device__ float load(long long i) const { return i >= 0 && i < own_ ? logits_[i] : no_logit(); }

  const float* logits_;
  const float4* vectors_;
  long long own_;
  unsigned before_, first_id_;
  unsigned whole_ = 0, whole_end_ = 0;  // vectors that can be loaded whole
};

// The best of tiles [begin, end) of a row. A tile has V vectors per thread; each is requested as
// soon as its register is free.
template <int kThreads, int V, typename Taker>
__device__ __forceinline__ unsigned long long best_of(Taker taker, const Row& row, unsigned begin,
                                                      unsigned end) {
  float4 vectors[V];
  unsigned at = begin * V * kThreads + threadIdx.x;
#pragma unroll
  for (int v = 0; v < V; ++v) vectors[v] = row.load(at + v * kThreads);
  for (unsigned tile = begin; tile < end; ++tile) {
    // If the first one is not hopeless, the others rarely are.
    const bool ask = taker.hopeless(vectors[0]);
#pragma unroll
    for (int v = 0; v < V; ++v, at += kThreads) {
      if (!(ask && (v == 0 || taker.hopeless(vectors[v])))) taker.take(vectors[v], row.id(at));
      if (tile + 1 < end) vectors[v] = row.load(at + V * kThreads);
    }
  }
  return taker.best();
}

// Merges a block's part of a row with the others.
__device__ void finish_part(const Params& p, long long row, int slot, unsigned long long best,
                            unsigned tiles) {
  if (tiles == p.tiles) return p.sampled.set(row, slot, best);
  unsigned long long* shared_best = p.scratch + 2 * row;
  atomicMax(shared_best, best);
  __threadfence();
  if (atomicAdd(shared_best + 1, tiles) + tiles != p.tiles) return;
  __threadfence();
  best = atomicExch(shared_best, 0ull);
  shared_best[1] = 0;
  p.sampled.set(row, slot, best);
}

template <int kThreads, int V>
__global__ void __launch_bounds__(kThreads, kRoom / kThreads) sample_tokens_kernel(const Params p) {
  pdl_begin();
  __shared__ unsigned long long scratch[kThreads / 32 + 1];
  __shared__ unsigned best_key;
  const SamplingRowsView& rows = p.rows;
  unsigned tile = blockIdx.x * p.share + min(blockIdx.x, p.more);
  const unsigned last = tile + p.share + (blockIdx.x < p.more ? 1 : 0);
  for (unsigned count; tile < last; tile += count) {
    const unsigned row = tile / p.tiles, begin = tile - row * p.tiles;
    count = min(last - tile, p.tiles - begin);
    const int slot = rows.slots[row];
    if (slot < 0) {
      if (begin == 0 && threadIdx.x == 0) p.sampled.set(row, slot, 0);
      continue;
    }
    const SlotParams& params = rows.params[slot];
    const Row logits(rows.changed_logits == nullptr ? rows.logits + row * rows.stride
                                                    : rows.sampled_logits(row, params.flags),
                     rows);
    unsigned long long best;
    if (params.inverse_temperature == 0) {
      best = best_of<kThreads, V>(Greedy(), logits, begin, begin + count);
    } else {
      if (threadIdx.x == 0) best_key = 0;
      __syncthreads();
      const float threshold = p.thresholds != nullptr ? p.thresholds[row] : -kInfinity;
      const Random random(params, rows.positions[row], threshold, best_key);
      best = best_of<kThreads, V>(random, logits, begin, begin + count);
    }
    best = over_block(best, Larger(), scratch);
    if (threadIdx.x == 0) finish_part(p, row, slot, best, count);
  }
}

template <int kThreads, int V>
void launch(Params p, cudaStream_t stream) {
  constexpr std::int64_t kTile = V * kThreads * 4;
  const std::int64_t logits = p.rows.own + p.rows.first_id % 4;
  p.tiles = static_cast<unsigned>(std::max<std::int64_t>((logits + kTile - 1) / kTile, 1));
  const std::int64_t tiles = p.rows.rows * p.tiles;
  const std::int64_t room =
      nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount) * (kRoom / kThreads);
  const auto blocks = static_cast<unsigned>(std::min(tiles, room));
  p.share = static_cast<unsigned>(tiles / blocks);
  p.more = static_cast<unsigned>(tiles % blocks);
  launch_with_pdl("launching sample_tokens", sample_tokens_kernel<kThreads, V>, dim3(blocks),
                  dim3(kThreads), stream, p);
}

__global__ void reduce_samples_kernel(const unsigned long long* bests, const int* slots,
                                      const int* targets, int* tokens, int* last_tokens,
                                      long long parts, long long rows) {
  pdl_begin();
  const long long row = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (row >= rows) return;
  const int slot = slots[row];
  if (slot < 0) {
    tokens[row] = targets != nullptr ? targets[row] : -1;
    return;
  }
  unsigned long long best = 0;
  for (long long part = 0; part < parts; ++part) best = Larger()(best, bests[part * rows + row]);
  tokens[row] = SampledTokens::token_of(best);
  last_tokens[slot] = SampledTokens::next_input(tokens[row]);
}

}  // namespace

void sample_tokens(const SampleTokens& args, Stream& stream) {
  const Params p{.rows = SamplingRowsView(args.rows),
                 .thresholds = args.thresholds.as<float>(),
                 .scratch = args.scratch.as<unsigned long long>(),
                 .sampled = SampledTokens(args),
                 .tiles = 0,
                 .share = 0,
                 .more = 0};
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (p.rows.rows <= kFewRows) {
    launch<128, 2>(p, native);
  } else {
    launch<256, 4>(p, native);
  }
}

void reduce_samples(const ReduceSamples& args, Stream& stream) {
  constexpr int kReduceThreads = 64;
  const long long parts = args.bests.shape[0], rows = args.bests.shape[1];
  launch_with_pdl("launching reduce_samples", reduce_samples_kernel,
                  blocks_for(rows, kReduceThreads), kReduceThreads, nvllm::cuda::native(stream),
                  args.bests.as<unsigned long long>(), args.slots.as<int>(), args.targets.as<int>(),
                  args.tokens.as<int>(), args.last_tokens.as<int>(), parts, rows);
}

}  // namespace nvllm::kernels::cuda
