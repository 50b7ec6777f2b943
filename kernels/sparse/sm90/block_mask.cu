// The scores of strided rows and tokens on Hopper (../sm80/block_mask.cu defines them): a
// persistent, warp-specialized GEMM of depth kStride head_dim.
//
// Each block processes one tile of 128 strided rows and 256 strided tokens after the other
// (strided_scores.cuh). A producer thread copies queries and keys by TMA, 64 elements deep, into a
// ring of stages; each block of a cluster multicasts a part of the keys. Two consumer warpgroups
// multiply them by wgmma, each with 64 of the rows, and while they reduce their scores to
// log-sum-exps, the first stages of the next tile arrive.
//
// A strided token is kStride keys at a constant stride, so a TMA box takes the same key of each of
// them. For this a first kernel gathers keys from cache blocks into one contiguous tensor.
#include <algorithm>
#include <array>

#include "kernels/attention/sm90/consumer.cuh"
#include "kernels/attention/sm90/producer.cuh"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/common/sm90/wgmma.cuh"
#include "kernels/sparse/sm90/strided_scores.cuh"

namespace nvllm::kernels::cuda {
namespace strided {
namespace {

constexpr int kGatherThreads = 256;

// Copies the keys of tokens [first, end) to their positions in the sequence, with zeros past the
// last token. One warp per token.
template <typename T>
__global__ void __launch_bounds__(kGatherThreads)
    gather_keys_kernel(const TileParams<T> p, T* gathered, int kv_heads, int first, int end) {
  pdl_begin();
  const int warps = static_cast<int>(gridDim.x) * kGatherThreads / 32;
  const int warp = (static_cast<int>(blockIdx.x) * kGatherThreads + threadIdx.x) / 32;
  const int head_chunks = p.head_dim / 8, chunks = kv_heads * head_chunks;
  for (int token = first + warp; token < end; token += warps) {
    const T* const keys = token < p.tokens ? p.keys_of(token) : p.keys;
    T* const to = gathered + static_cast<long long>(token) * kv_heads * p.head_dim;
#pragma unroll 4
    for (int chunk = threadIdx.x % 32; chunk < chunks; chunk += 32) {
      const int head = chunk / head_chunks;
      uint4 value{};
      if (token < p.tokens) {
        value = *reinterpret_cast<const uint4*>(keys + head * p.head_stride +
                                                (chunk - head * head_chunks) * 8);
      }
      *reinterpret_cast<uint4*>(to + chunk * 8) = value;
    }
  }
}

// The tensor maps of queries and keys; dimensions innermost first.
struct Maps {
  CUtensorMap queries;  // elements, rows of a strided row, strided rows that are whole, heads
  CUtensorMap keys;     // elements, tokens of a strided token, strided tokens, KV heads
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The work of the producer thread.
template <typename T>
__device__ __forceinline__ void produce(const TileParams<T>& p, const Shared& shared,
                                        const Maps& maps) {
  constexpr int kPart = kTokens / kCluster;
  const int part = static_cast<int>(blockIdx.x) % kCluster * kPart;
  PipelineState state;
  TileScheduler<T> scheduler(p);
  for (TilePosition position; scheduler.next(position);) {
    const int kv_head = (p.first_head + position.head) / p.group;
    for (int t = 0; t < kStep; ++t) {
      for (int d = 0; d < p.padded_dim; d += kDepth) {
        const Barrier full = shared.full(state.stage);
        shared.empty(state.stage).wait(state.parity ^ 1);
        full.arrive_and_expect(kStageBytes);
        copy_box(shared.rows(state.stage), maps.queries, d, kStep - 1 - t, position.row,
                 position.head, full);
        copy_box_to_all(shared.tokens(state.stage) + part * kRowBytes, maps.keys, d, t,
                        position.token + part, kv_head, full);
        state.advance();
      }
    }
  }
}

// Enqueues a stage's part of a warpgroup's scores.
template <typename T>
__device__ __forceinline__ void multiply(float (&scores)[kScores], unsigned rows, unsigned tokens,
                                         bool first) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    wgmma<T>(scores, wgmma_descriptor(rows + k * 32, 16, 1024),
             wgmma_descriptor(tokens + k * 32, 16, 1024), !first || k > 0);
  }
  wgmma_commit();
}

// The tensor map yields zeros for an incomplete last strided row. The warpgroup with that row, row
// `at` of its tile, fills in its part of a stage.
template <typename T>
__device__ __forceinline__ void fill_last_row(const TileParams<T>& p, int head, int step,
                                              unsigned rows, int at, int group, int thread) {
  const int per_row = p.padded_dim / kDepth;
  const int row = p.strides() * kStep - 1 - step / per_row;
  const int d = step % per_row * kDepth + thread * 8;
  if (row < p.rows && thread < kDepth / 8 && d < p.head_dim) {
    const T* const from = p.q + row * p.q_row + head * p.head_dim + d;
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(rows + at * kRowBytes +
                                                                  (thread ^ at % 8) * 16),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
    fence_shared_writes();
  }
  sync_threads(group + 1, kGroupThreads);
}

// The work of a consumer warpgroup.
template <typename T>
__device__ __forceinline__ void consume(const TileParams<T>& p, const Shared& shared, int group,
                                        int thread) {
  const int lane = thread % 32;
  const int steps = kStep * (p.padded_dim / kDepth);  // at least 8
  const auto free_stage = [&](int stage) {
    __syncwarp();
    if (lane < kCluster) arrive_in(shared.empty(stage), lane);
  };
  PipelineState state;
  TileScheduler<T> scheduler(p);
  float scores[kScores];
  for (TilePosition position; scheduler.next(position);) {
    hold(scores);
    const int first = position.row + group * kGroupRows;
    const int last = p.rows % kStep == 0 ? -1 : p.strides() - 1 - first;
    const bool fills = 0 <= last && last < kGroupRows;
    int before = 0;  // the stage
    for (int step = 0; step < steps; ++step) {
      shared.full(state.stage).wait(state.parity);
      const unsigned rows = shared.rows(state.stage) + group * kGroupRows * kRowBytes;
      if (fills) fill_last_row(p, position.head, step, rows, last, group, thread);
      multiply<T>(scores, rows, shared.tokens(state.stage), step == 0);
      if (step > 0) {
        wgmma_wait<1>();
        free_stage(before);
      }
      before = state.stage;
      state.advance();
    }
    wgmma_wait<0>();
    hold(scores);
    free_stage(before);
    const int row = first + thread / 32 * 16 + lane / 4;
    const bool masked = first >= p.strides() || position.token + kTokens > p.seen(first);
    store_sums<T, 0>(p, position, row, scores, masked, lane);
    store_sums<T, 1>(p, position, row, scores, masked, lane);
  }
}

#endif

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    score_tiles_kernel_sm90(const __grid_constant__ TileParams<T> p,
                            const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  const Shared shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.full(stage).init(1);
      shared.empty(stage).init(kCluster * kConsumers * kGroupThreads / 32);
    }
    fence_barrier_init();
  }
  sync_cluster();
  pdl_begin();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (group == kConsumers) {
    sm90::lower_register_limit<40>();
    if (thread == 0) produce(p, shared, maps);
  } else {
    sm90::raise_register_limit<232>();
    consume(p, shared, group, thread);
  }
  sync_cluster();  // no block may exit while others copy or arrive there
#endif
}

template <typename T>
Maps describe(const TileParams<T>& p, const T* gathered, std::int64_t kv_heads) {
  const auto map = [](const void* data, const std::array<Dimension, 4>& dimensions) {
    return describe_tensor("block_mask", dtype_of<T>, data, dimensions);
  };
  const Dimension elements{p.head_dim, 1, kDepth};
  const Dimension heads{p.heads, p.head_dim, 1};
  const std::int64_t step_rows = std::min(kStep, p.rows);
  const std::int64_t token = kv_heads * p.head_dim;
  return {
      .queries = map(p.q, {{elements,
                            {step_rows, p.q_row, 1},
                            {std::max(1, p.rows / kStep), kStep * p.q_row, kRows},
                            heads}}),
      .keys = map(gathered, {{elements,
                              {kStep, token, 1},
                              {(p.tokens + kStep - 1) / kStep, kStep * token, kTokens / kCluster},
                              {kv_heads, p.head_dim, 1}}})};
}

}  // namespace
}  // namespace strided

template <typename T>
bool score_tiles_sm90(const BlockMask& args, const TileParams<T>& p, cudaStream_t stream) {
  if (args.gathered.data == nullptr || !(p.scale > 0) || !runs_sm90a()) return false;
  const std::int64_t kv_heads = args.prompt.kv.kv_heads();
  auto* const gathered = args.gathered.as<T>();
  const int blocks = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const int first = static_cast<int>(args.gathered_tokens);
  const int end = (p.tokens + kStep - 1) / kStep * kStep;
  if (first < end) {
    launch_with_pdl("gathering keys for block_mask", strided::gather_keys_kernel<T>, blocks * 4,
                    strided::kGatherThreads, stream, p, gathered, static_cast<int>(kv_heads), first,
                    end);
  }
  const auto kernel = strided::score_tiles_kernel_sm90<T>;
  allow_shared_memory(kernel, strided::kSharedBytes, "preparing block_mask");
  const LaunchShape shape{dim3(blocks / strided::kCluster * strided::kCluster), strided::kThreads,
                          strided::kSharedBytes, strided::kCluster};
  launch_with_pdl("launching block_mask", kernel, shape, stream, p,
                  strided::describe(p, gathered, kv_heads));
  return true;
}

template bool score_tiles_sm90<Bf16>(const BlockMask& args, const TileParams<Bf16>& p,
                                     cudaStream_t stream);
template bool score_tiles_sm90<F16>(const BlockMask& args, const TileParams<F16>& p,
                                    cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
