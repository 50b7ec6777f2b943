// Drawing tokens on the GPU. A row is shared by many blocks; the last of them to be done makes the token.
//
// Few tokens can win, and noise is the expensive part. So first the bits of each token's noise give bounds
// of its score; then those are judged whose upper bound reaches the highest lower bound of the warp.
#include "kernels/cuda/draw_tokens.h"
#include "kernels/cuda/sampling.cuh"
#include "kernels/sampling_math.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// From so many rows on a thread takes many logits, all on their way together.
constexpr std::int64_t kManyRows = 8;

struct Params {
  RowsView rows;
  const float* thresholds;      // nullptr: none
  const int* targets;           // nullptr: -1
  unsigned long long* scratch;  // of each row: the best so far, and how many blocks are done
  int* tokens;
  int* last_tokens;
  unsigned long long* bests;  // nullptr: the rows are whole
  unsigned tiles;             // of a row
};

__device__ __forceinline__ int token_of(unsigned long long best) {
  return best == 0 ? 0 : static_cast<int>(id_of_scored(best));
}

// V: vectors of a thread.
template <int V>
struct Tile {
  float4 logits[V];
  long long first;  // element of the first vector; others follow at distances of kThreads vectors

  __device__ long long at(int v) const { return first + v * (kThreads * 4LL); }
  template <typename Take>
  __device__ __forceinline__ void for_each(const Take& take) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int e = 0; e < 4; ++e) take(v * 4 + e, element(logits[v], e), at(v) + e);
    }
  }
};

template <int V>
__device__ unsigned long long best_of_greedy(const Tile<V>& tile, const RowsView& rows) {
  std::uint32_t best = 0;
  long long best_at = tile.first;  // where all is NaN the first one stands for it
  tile.for_each([&](int, float logit, long long i) {
    const std::uint32_t key = order_key(logit);
    if (key > best) best = key, best_at = i;
  });
  if (tile.first >= rows.own) return 0;
  const auto id = rows.first_id + static_cast<std::uint32_t>(best_at);
  return std::uint64_t{best} << 32 | (0xffffffffu - id);
}

// All lanes of a warp call it together.
template <int V>
__device__ unsigned long long best_at_random(const Tile<V>& tile, const RowsView& rows,
                                             const SlotRules& rules, int position,
                                             float threshold) {
  const RandomKeys noise = noise_keys(rules.seed, position);
  const float factor = rules.inverse_temperature;
  const auto bits_of = [&](long long i) {
    return noise.bits(rows.first_id + static_cast<std::uint32_t>(i));
  };
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  float reach[V * 4];
  float sure = kNever;
  tile.for_each([&](int n, float logit, long long i) {
    const float steps = gumbel_steps(bits_of(i));
    // NaN is below every threshold, and what is behind the row is NaN.
    const bool may = logit >= threshold;
    reach[n] = may ? fused(logit, factor, kGumbelStep * steps) : __uint_as_float(0x7fffffff);
    const float least = may ? fused(logit, factor, least_gumbel(steps)) : kNever;
    sure = least > sure ? least : sure;
  });
  sure = over_warp(sure, Larger());
  unsigned long long best = 0;
  tile.for_each([&](int n, float logit, long long i) {
    if (!(reach[n] >= sure)) return;
    const float score = fused(logit, factor, gumbel(bits_of(i)));
    const auto id = rows.first_id + static_cast<std::uint32_t>(i);
    best = Larger()(best, static_cast<unsigned long long>(scored(score, id)));
  });
  return best;
}

__device__ void finish(const Params& p, long long row, int slot, unsigned long long best) {
  if (p.bests != nullptr) {
    p.bests[row] = best;
  } else {
    p.tokens[row] = p.last_tokens[slot] = token_of(best);
  }
}

template <int V>
__global__ void __launch_bounds__(kThreads) draw_tokens_kernel(const Params p) {
  begin_after_previous_kernel();
  __shared__ unsigned long long scratch[kThreads / 32 + 1];
  const RowsView& rows = p.rows;
  const long long row = blockIdx.x / p.tiles;
  const unsigned tile_number = blockIdx.x - static_cast<unsigned>(row) * p.tiles;
  const int slot = rows.slots[row];
  if (slot < 0) {
    if (threadIdx.x != 0 || tile_number != 0) return;
    if (p.bests != nullptr) {
      p.bests[row] = 0;
    } else {
      p.tokens[row] = p.targets != nullptr ? p.targets[row] : -1;
    }
    return;
  }

  const SlotRules& rules = rows.rules[slot];
  const float* logits =
      rows.adjusted == nullptr ? rows.logits + row * rows.stride : rows.judged(row, rules.flags);
  Tile<V> tile;
  tile.first = (tile_number * static_cast<long long>(V) * kThreads + threadIdx.x) * 4;
#pragma unroll
  for (int v = 0; v < V; ++v) tile.logits[v] = load_logits(logits, tile.at(v), rows.own);
  unsigned long long best;
  if (rules.inverse_temperature == 0) {
    best = best_of_greedy(tile, rows);
  } else {
    const float threshold =
        p.thresholds != nullptr ? p.thresholds[row] : -std::numeric_limits<float>::infinity();
    best = best_at_random(tile, rows, rules, rows.positions[row], threshold);
  }

  best = over_block(best, Larger(), scratch);
  if (threadIdx.x != 0) return;
  if (p.tiles == 1) return finish(p, row, slot, best);
  unsigned long long* shared_best = p.scratch + 2 * row;
  atomicMax(shared_best, best);
  __threadfence();
  if (atomicAdd(shared_best + 1, 1ull) != p.tiles - 1) return;
  __threadfence();
  best = atomicExch(shared_best, 0ull);
  shared_best[1] = 0;
  finish(p, row, slot, best);
}

template <int V>
void launch(Params p, cudaStream_t stream) {
  constexpr std::int64_t kTile = V * 4 * kThreads;
  p.tiles = static_cast<unsigned>((p.rows.own + kTile - 1) / kTile);
  if (p.tiles == 0) p.tiles = 1;  // an empty part says so
  launch_early("launching draw_tokens", draw_tokens_kernel<V>,
               dim3(static_cast<unsigned>(p.rows.rows) * p.tiles), dim3(kThreads), stream, p);
}

__global__ void pick_tokens_kernel(const unsigned long long* bests, const int* slots,
                                   const int* targets, int* tokens, int* last_tokens,
                                   long long parts, long long rows) {
  begin_after_previous_kernel();
  const long long row = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (row >= rows) return;
  const int slot = slots[row];
  if (slot < 0) {
    tokens[row] = targets != nullptr ? targets[row] : -1;
    return;
  }
  unsigned long long best = 0;
  for (long long part = 0; part < parts; ++part) best = Larger()(best, bests[part * rows + row]);
  tokens[row] = last_tokens[slot] = token_of(best);
}

}  // namespace

void draw_tokens(const DrawTokens& args, Stream& stream) {
  const Params p{.rows = RowsView(args.rows),
                 .thresholds = args.thresholds.as<float>(),
                 .targets = args.targets.as<int>(),
                 .scratch = args.scratch.as<unsigned long long>(),
                 .tokens = args.tokens.as<int>(),
                 .last_tokens = args.last_tokens.as<int>(),
                 .bests = args.best.as<unsigned long long>(),
                 .tiles = 0};
  const cudaStream_t native = nvllm::cuda::native(stream);
  p.rows.rows < kManyRows ? launch<1>(p, native) : launch<4>(p, native);
}

void pick_tokens(const PickTokens& args, Stream& stream) {
  constexpr int kPickThreads = 64;
  const long long parts = args.bests.shape[0], rows = args.bests.shape[1];
  launch_early("launching pick_tokens", pick_tokens_kernel,
               dim3(static_cast<unsigned>((rows + kPickThreads - 1) / kPickThreads)),
               dim3(kPickThreads), nvllm::cuda::native(stream), args.bests.as<unsigned long long>(),
               args.slots.as<int>(), args.targets.as<int>(), args.tokens.as<int>(),
               args.last_tokens.as<int>(), parts, rows);
}

}  // namespace nvllm::kernels::cuda
