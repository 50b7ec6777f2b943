// LM-head GEMM on Hopper: 17 to 128 rows times a weight with very many outputs, the vocabulary; and
// the same with a sampling epilogue, where logits are never stored.
//
// A block is persistent and takes every gridDim.x-th tile of 192 outputs, for all rows and inputs.
// Weights and x are loaded as in small_m.cuh, in stages of 64 inputs through a ring in shared
// memory, which continues from tile to tile: the next tile's weights are in flight during a tile's
// epilogue. A thread samples from the values in its registers.
#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/gemm/sm90/weight_stages.cuh"
#include "kernels/sampling/sm80/sampling.cuh"

namespace nvllm::kernels::cuda {
namespace lm_head {

using staged::kAlignment, staged::kRowBytes, staged::kStageInputs, staged::kTileOutputs;

constexpr int kWarpgroups = 3;
constexpr int kOutputs = kWarpgroups * kTileOutputs;
constexpr int kConsumers = kWarpgroups * 128;  // threads; then come those that copy
constexpr int kThreads = kConsumers + 32;

// A row whose token is sampled: the parameters of a token's score, and the key of the best token
// that the block has seen.
struct alignas(16) SampledRow {
  RandomKeys noise;
  float factor;  // 0: the highest logit is taken
  unsigned best_key;
};
// For rows that sample nothing: NaN's key, which nothing beats.
[[maybe_unused]] constexpr unsigned kUnbeatable = 0xffffffff;

// The layout of a block's shared memory, in bytes.
template <int kRows>
struct SharedLayout {
  static constexpr int kWeightBytes = kOutputs * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kRowBytes;
  static constexpr int kStages = (200 << 10) / kStageBytes;
  static constexpr int kSampledRows = kStages * kStageBytes;
  static constexpr int kBest = kSampledRows + kRows * static_cast<int>(sizeof(SampledRow));
  static constexpr int kBarriers = kBest + kRows * 8;
  static constexpr int kBytes = kAlignment + kBarriers + kStages * 16;
};

struct LmHeadParams {
  float* logits;  // not stored where tokens are sampled
  long long stride;
  int rows, outputs, inputs;
};

struct SampleParams {
  SamplingRowsView rows;
  // The best token of each row so far; the first entry also counts finished blocks.
  unsigned long long* scratch;
  SampledTokens sampled;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The position of element i of a thread's sums: its row, and its offset from the thread's first
// output.
__device__ __forceinline__ int row_of(int i) {
  return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
}
__device__ __forceinline__ int output_of(int i) {
  return i / 2 % 2 * 8;
}

template <int kRows>
__device__ __forceinline__ void store(const LmHeadParams& p, int first,
                                      const float (&sums)[kRows / 2]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int row = row_of(i), output = first + output_of(i);
    if (row < p.rows && output < p.outputs) p.logits[row * p.stride + output] = sums[i];
  }
}

// The best tokens that a block has seen for all rows. As in sample_tokens.cu, only tokens that
// could win with their Gumbel noise are evaluated.
template <int kRows>
class SampledRows {
 public:
  __device__ __forceinline__ SampledRows(const LmHeadParams& p, const SampleParams& sample,
                                         char* memory)
      : p_(p),
        sample_(sample),
        sampled_(reinterpret_cast<SampledRow*>(memory + SharedLayout<kRows>::kSampledRows)),
        best_(reinterpret_cast<unsigned long long*>(memory + SharedLayout<kRows>::kBest)) {}

  // All consumers call it.
  __device__ __forceinline__ void begin() const {
    const int row = threadIdx.x;
    if (row < kRows) {
      const int slot = row < p_.rows ? sample_.rows.slots[row] : -1;
      SampledRow sampled{{0, 0}, 0, kUnbeatable};
      if (slot >= 0) {
        const SlotParams& rules = sample_.rows.params[slot];
        sampled = {noise_keys(rules.seed, sample_.rows.positions[row]), rules.inverse_temperature,
                   0};
      }
      sampled_[row] = sampled;
      best_[row] = 0;
    }
    sync_threads(1, kConsumers);
  }

  // Before a block's first tile is evaluated: takes one token of each row in every warp, so that
  // there is a score to beat. first: the thread's first output.
  __device__ __forceinline__ void seed_best_keys(int first, const float (&sums)[kRows / 2]) const {
    constexpr int kQuads = kRows / 8;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int begin = 0; begin < kQuads; begin += 8) {
      const int quad = begin + lane / 4;
      if (quad * 8 >= p_.rows) continue;
#pragma unroll 1
      for (int half = 0; half < 2; ++half)
        consider(4 * quad + half, first, pick(sums, 4 * quad + half));
    }
  }

  __device__ __forceinline__ void consider_tile(int first, const float (&sums)[kRows / 2]) const {
    constexpr int kAtOnce = kRows / 2 < 32 ? kRows / 2 : 32;
#pragma unroll
    for (int begin = 0; begin < kRows / 2; begin += kAtOnce) {
      unsigned candidates = 0;
#pragma unroll
      for (int i = begin; i < begin + kAtOnce; i += 4) {
        if (i / 4 * 8 >= p_.rows) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const SampledRow sampled = sampled_[row_of(i + half)];
          const float best_score = value_of_key(sampled.best_key);
#pragma unroll
          for (int j = i + half; j < i + 4; j += 2) {
            const std::uint32_t id = id_of(first + output_of(j));
            const float bound = score(
                sampled, sums[j], gumbel_noise_bound(sampled.noise, sampled.noise.premixed(id)));
            if (bound >= best_score) candidates |= 1u << (j - begin);
          }
        }
      }
      while (candidates != 0) {
        const int i = begin + __ffs(static_cast<int>(candidates)) - 1;
        candidates &= candidates - 1;
        consider(i, first + output_of(i), pick(sums, i));
      }
    }
  }

  // The last block to call it writes the tokens. All consumers call it.
  __device__ __forceinline__ void finish() const {
    __shared__ bool last;
    sync_threads(1, kConsumers);
    const int row = threadIdx.x;
    const bool inside = row < p_.rows;
    const int slot = inside ? sample_.rows.slots[row] : -1;
    unsigned long long* const best = sample_.scratch + 2 * row;
    unsigned long long* const done = sample_.scratch + 1;
    if (slot >= 0 && best_[row] != 0) atomicMax(best, best_[row]);
    __threadfence();
    sync_threads(1, kConsumers);
    if (threadIdx.x == 0) last = atomicAdd(done, 1ull) + 1 == gridDim.x;
    sync_threads(1, kConsumers);
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) *done = 0;
    if (inside) sample_.sampled.set(row, slot, slot < 0 ? 0 : atomicExch(best, 0ull));
  }

 private:
  static __device__ __forceinline__ float score(const SampledRow& sampled, float logit,
                                                float noise) {
    return sampled.factor == 0 ? logit : fused(logit, sampled.factor, noise);
  }

  __device__ __forceinline__ std::uint32_t id_of(int output) const {
    return sample_.rows.first_id + static_cast<std::uint32_t>(output);
  }
  // Selects among registers, which cannot be indexed.
  static __device__ __forceinline__ float pick(const float (&sums)[kRows / 2], int i) {
    float picked = 0;
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) picked = j == i ? sums[j] : picked;
    return picked;
  }

  __device__ __forceinline__ void consider(int i, int output, float logit) const {
    SampledRow& sampled = sampled_[row_of(i)];
    const std::uint32_t id = id_of(output);
    const float its = score(sampled, logit, gumbel(sampled.noise.bits(id)));
    const unsigned key = order_key(its);  // NaN's is 0
    if (output >= p_.outputs || key == 0 || atomicMax(&sampled.best_key, key) > key) return;
    atomicMax(best_ + row_of(i), static_cast<unsigned long long>(candidate(its, id)));
  }

  const LmHeadParams& p_;
  const SampleParams& sample_;
  SampledRow* sampled_;
  unsigned long long* best_;
};

#endif

// grid: resident blocks. `weight` [1, outputs, inputs], `x` [1, rows, inputs] in boxes of 64
// inputs, a tile's outputs or kRows rows.
template <typename T, int kRows, bool kSamples>
__global__ void __launch_bounds__(kThreads, 1)
    lm_head_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap x, const LmHeadParams p,
                   const SampleParams sample) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Here = SharedLayout<kRows>;
  constexpr int kStages = Here::kStages;
  extern __shared__ char memory_of_block[];
  const auto unaligned = static_cast<unsigned>(__cvta_generic_to_shared(memory_of_block));
  const unsigned base = (unaligned + kAlignment - 1) & ~(kAlignment - 1);
  char* const memory = memory_of_block + (base - unaligned);
  const auto full = [&](int stage) { return Barrier{base + Here::kBarriers + stage * 8}; };
  const auto empty = [&](int stage) {
    return Barrier{base + Here::kBarriers + (kStages + stage) * 8};
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int steps = (p.inputs + kStageInputs - 1) / kStageInputs;  // of a tile
  const int tiles = (p.outputs + kOutputs - 1) / kOutputs;
  const auto block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const bool copies = warp == kWarpgroups * 4 && lane == 0;
  const EvictFirst evict_first;  // the weights are read once
  const auto copy_weights = [&](int stage, int tile, int step) {
    full(stage).arrive_and_expect(Here::kStageBytes);
    copy_box(base + stage * Here::kStageBytes, weight, step * kStageInputs, tile * kOutputs, 0,
             full(stage), evict_first);
  };
  const auto copy_x = [&](int stage, int step) {
    copy_box(base + stage * Here::kStageBytes + Here::kWeightBytes, x, step * kStageInputs, 0, 0,
             full(stage));
  };
  const int filled = min(kStages, steps);  // loaded before anything else
  if (copies) {
    prefetch(x);
    for (int stage = 0; stage < kStages; ++stage) {
      full(stage).init(1);
      empty(stage).init(kWarpgroups * 4);
    }
    fence_barrier_init();
    for (int step = 0; step < filled; ++step) copy_weights(step, block, step);
  }
  __syncwarp();
  __syncthreads();
  wait_on_dependent_grids();

  int stage = 0;
  unsigned parity = 0;
  const auto advance = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };
  if (warp == kWarpgroups * 4) {
    if (copies) {
      for (int tile = block; tile < tiles; tile += blocks) {
        for (int step = 0; step < steps; ++step, advance()) {
          if (tile > block || step >= filled) {
            empty(stage).wait(parity ^ 1);
            copy_weights(stage, tile, step);
          }
          copy_x(stage, step);
        }
      }
      launch_dependent_grids();  // its weights are loaded after these
    }
    return;
  }

  [[maybe_unused]] const SampledRows<kRows> sampled_rows(p, sample, memory);
  if constexpr (kSamples) sampled_rows.begin();
  const unsigned own = warp / 4 * kTileOutputs * kRowBytes;
  for (int tile = block; tile < tiles; tile += blocks) {
    float sums[kRows / 2];
    int previous = 0;
    for (int step = 0; step < steps; ++step, advance()) {
      full(stage).wait(parity);
      const unsigned at = base + stage * Here::kStageBytes;
      const auto a = wgmma_descriptor(at + own, 16, 1024);
      const auto b = wgmma_descriptor(at + Here::kWeightBytes, 16, 1024);
      staged::multiply<T>(sums, a, b, step);
      wgmma_wait<1>();
      if (step > 0 && lane == 0) empty(previous).arrive();
      previous = stage;
    }
    wgmma_wait<0>();
    hold(sums);
    if (lane == 0) empty(previous).arrive();
    const int first = tile * kOutputs + warp * 16 + lane / 4;
    if constexpr (kSamples) {
      if (tile == block) sampled_rows.seed_best_keys(first, sums);
      sampled_rows.consider_tile(first, sums);
    } else {
      store<kRows>(p, first, sums);
    }
  }
  if constexpr (kSamples) sampled_rows.finish();
#endif
}

}  // namespace lm_head

namespace {

// The GEMV (sm80/gemv.cuh) takes fewer rows; with more rows, x, which every tile
// reads, would be as long as the weights.
constexpr std::int64_t kMinRows = 17, kMaxRows = 128;
// Blocks have enough tiles that one more in some of them does not matter.
constexpr int kMinTiles = 2;
constexpr double kMinFilled = 0.8;  // the share of the grid's tile slots that have a tile

int tiles_of(std::int64_t outputs) {
  return static_cast<int>((outputs + lm_head::kOutputs - 1) / lm_head::kOutputs);
}

template <typename T, int kRows, bool kSamples>
void launch(const GemmCall& call, const lm_head::SampleParams& sample, int multiprocessors,
            cudaStream_t stream) {
  const auto kernel = lm_head::lm_head_kernel<T, kRows, kSamples>;
  constexpr int kBytes = lm_head::SharedLayout<kRows>::kBytes;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "preparing the LM head");
  const TensorView& out = call.operands.out;
  const lm_head::LmHeadParams p{out.as<float>(), out.stride[0], static_cast<int>(out.shape[0]),
                                static_cast<int>(call.weight.outputs()),
                                static_cast<int>(call.weight.inputs())};
  const int tiles = tiles_of(call.weight.outputs());
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min(tiles, multiprocessors))),
                          dim3(lm_head::kThreads), static_cast<std::size_t>(kBytes)};
  launch_with_pdl("launching the LM head", kernel, shape, stream,
                  describe_rows("gemm", call.weight.values, lm_head::kOutputs),
                  describe_rows("gemm", x_of(call), kRows), p, sample);
}

template <typename T, bool kSamples>
void launch(const GemmCall& call, const lm_head::SampleParams& sample, int multiprocessors,
            cudaStream_t stream) {
  const std::int64_t rows = call.operands.out.shape[0];
  if (rows <= 32) return launch<T, 32, kSamples>(call, sample, multiprocessors, stream);
  if (rows <= 64) return launch<T, 64, kSamples>(call, sample, multiprocessors, stream);
  static_assert(kMaxRows == 128);
  launch<T, 128, kSamples>(call, sample, multiprocessors, stream);
}

template <bool kSamples>
void launch(const GemmCall& call, const lm_head::SampleParams& sample, int multiprocessors,
            Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  call.weight.format == WeightFormat::bf16
      ? launch<Bf16, kSamples>(call, sample, multiprocessors, native)
      : launch<F16, kSamples>(call, sample, multiprocessors, native);
}

}  // namespace

LmHead::LmHead()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      runs_sm90a_(cuda::runs_sm90a()) {}

bool LmHead::can_implement(const GemmShape& shape, bool invariant) const {
  const std::int64_t min_rows = invariant ? 1 : kMinRows;
  if (!runs_sm90a_ || shape.m < min_rows || shape.m > kMaxRows || shape.inputs == 0) return false;
  if (is_quantized(shape.format) || shape.type == DType::f32) return false;
  if (shape.out_type != DType::f32) return false;
  const bool plain = !shape.bias && !shape.residual && shape.fusion.epilogue == Epilogue::none;
  if (!plain || !shape.vectors.weight || !shape.vectors.x) return false;
  const int tiles = tiles_of(shape.outputs);
  const int max_tiles = (tiles + multiprocessors_ - 1) / multiprocessors_;  // of a block
  return max_tiles >= kMinTiles && tiles >= kMinFilled * max_tiles * multiprocessors_;
}

void LmHead::enqueue(const GemmCall& call, Stream& stream) const {
  const SampleTokens none;
  launch<false>(call, {SamplingRowsView(), nullptr, SampledTokens(none)}, multiprocessors_, stream);
}

void LmHead::enqueue_and_sample(const GemmCall& call, const SampleTokens& sample,
                                Stream& stream) const {
  launch<true>(call,
               {SamplingRowsView(sample.rows), sample.scratch.as<unsigned long long>(),
                SampledTokens(sample)},
               multiprocessors_, stream);
}

}  // namespace nvllm::kernels::cuda
