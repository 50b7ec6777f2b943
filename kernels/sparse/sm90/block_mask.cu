// The scores of strided rows and tokens on Hopper (../sm80/block_mask.cu defines them): a
// persistent, warp-specialized GEMM of depth kStride head_dim.
//
// Each block processes one tile of 128 strided rows and 256 strided tokens after the other. A
// producer thread copies queries and keys by TMA, 64 elements deep, into a ring of stages; each
// block of a cluster multicasts a part of the keys. Two consumer warpgroups multiply them by wgmma,
// each with 64 of the rows, and reduce their scores, which they have in registers, to a log-sum-exp
// per strided row and tile of kTile strided tokens. Meanwhile the first stages of the next tile
// arrive.
//
// A strided token is kStride keys at a constant stride, so a TMA box takes the same key of each of
// them. For this a first kernel gathers keys from cache blocks into one contiguous tensor.
#include <algorithm>
#include <array>

#include "kernels/attention/sm90/consumer.cuh"
#include "kernels/attention/sm90/producer.cuh"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/common/sm90/wgmma.cuh"
#include "kernels/sparse/sm80/block_mask.cuh"

namespace nvllm::kernels::cuda {
namespace strided {
namespace {

constexpr int kRows = 128, kTokens = 256;  // strided, of a tile
constexpr int kCluster = 2;  // blocks that process the same tokens and copy a part of them each
constexpr int kConsumers = 2, kGroupThreads = 128;
constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
[[maybe_unused]] constexpr int kGroupRows = kRows / kConsumers;
constexpr int kStages = 4;
constexpr int kRowBytes = kDepth * 2;
constexpr int kRowsBytes = kRows * kRowBytes, kTokensBytes = kTokens * kRowBytes;
constexpr int kStageBytes = kRowsBytes + kTokensBytes;
constexpr int kAlignment = 1024, kBarrierBytes = 128;
constexpr int kSharedBytes = kStages * kStageBytes + kBarrierBytes + kAlignment;
// Tiles of rows of a head that are processed together.
[[maybe_unused]] constexpr int kTogether = 4;

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

// The origin of a tile.
struct TilePosition {
  int head, row, token;
};

// The tiles of a persistent block, in an order in which concurrent blocks share rows and tokens: a
// part is the heads of a KV head and kTogether tiles of rows, against one tile of tokens after the
// other. The blocks of a cluster have the same tokens. Producer and consumers iterate identically.
template <typename T>
class TileScheduler {
 public:
  __device__ __forceinline__ explicit TileScheduler(const TileParams<T>& p)
      : p_(p), left_(static_cast<int>(blockIdx.x) / kCluster) {
    enter_kv_head();
  }

  // Returns false when there are no more tiles. If the cluster has one more tile than the block,
  // the block gets a tile past all rows.
  __device__ __forceinline__ bool next(TilePosition& position) {
    for (const int clusters = static_cast<int>(gridDim.x) / kCluster;; left_ += clusters) {
      int rounds = (rows_ * heads_ + kCluster - 1) / kCluster;
      while (left_ >= rounds * token_tiles_) {
        left_ -= rounds * token_tiles_;
        if (!next_part()) return false;
        rounds = (rows_ * heads_ + kCluster - 1) / kCluster;
      }
      const int first = left_ % rounds * kCluster;
      const int last = min(first + kCluster, rows_ * heads_) - 1;
      const int own = first + static_cast<int>(blockIdx.x) % kCluster;
      position.head = head_ + own % heads_;
      position.row = own <= last ? row_ + own / heads_ * kRows : p_.strides();
      position.token = left_ / rounds * kTokens;
      if (position.token < strides_seen(row_ + last / heads_ * kRows)) {
        left_ += clusters;
        return true;
      }
    }
  }

 private:
  // How many strided tokens a tile of rows attends to.
  __device__ __forceinline__ int strides_seen(int row) const {
    return p_.seen(min(row + kRows, p_.strides()) - 1);
  }
  __device__ __forceinline__ void enter_kv_head() {
    next_head_ = min(p_.heads, head_ + p_.group - (p_.first_head + head_) % p_.group);
    heads_ = next_head_ - head_;
    row_ = 0;
    enter_rows();
  }
  __device__ __forceinline__ void enter_rows() {
    rows_ = min(kTogether, (p_.strides() - row_ + kRows - 1) / kRows);
    token_tiles_ = (strides_seen(row_ + (rows_ - 1) * kRows) + kTokens - 1) / kTokens;
  }
  __device__ __forceinline__ bool next_part() {
    row_ += kTogether * kRows;
    if (row_ < p_.strides()) {
      enter_rows();
      return true;
    }
    head_ = next_head_;
    if (head_ >= p_.heads) return false;
    enter_kv_head();
    return true;
  }

  const TileParams<T>& p_;
  int left_;  // rounds of clusters from the part's first to this cluster's next one
  int head_ = 0, next_head_ = 0, heads_ = 0, row_ = 0, rows_ = 0, token_tiles_ = 0;
};

// The layout of a block's shared memory.
struct Shared {
  unsigned base;

  __device__ __forceinline__ explicit Shared(const void* memory)
      : base((shared_address(memory) + kAlignment - 1) & ~(kAlignment - 1)) {}
  __device__ __forceinline__ unsigned rows(int stage) const { return base + stage * kStageBytes; }
  __device__ __forceinline__ unsigned tokens(int stage) const { return rows(stage) + kRowsBytes; }
  __device__ __forceinline__ Barrier full(int stage) const { return {rows(kStages) + stage * 8}; }
  __device__ __forceinline__ Barrier empty(int stage) const { return full(kStages + stage); }
};

// The next stage of the ring, and the parity of its barriers' phase.
struct PipelineState {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Cluster operations. The first arrives at a barrier of another block; the arriving thread has
// written nothing, and a release at cluster scope would cost a fence of all memory. The second
// copies a box to the same address in all blocks and signals their barriers.
__device__ __forceinline__ void arrive_in(const Barrier& barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier.address),
      "r"(block)
      : "memory");
}
__device__ __forceinline__ void copy_box_to_all(unsigned to, const CUtensorMap& tensor, int x0,
                                                int x1, int x2, int x3, const Barrier& arrived) {
  constexpr unsigned short kAll = (1 << kCluster) - 1;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&tensor)), "r"(arrived.address), "r"(x0), "r"(x1),
      "r"(x2), "r"(x3), "h"(kAll)
      : "memory");
}

constexpr int kScores = kTokens / 2;        // per thread, of two rows (layout: wgmma.cuh)
constexpr int kSums = kTokens / kTile / 4;  // per thread and row, of consecutive tiles
static_assert(kSums % 4 == 0 && kTile % 8 == 0);

// Adds up four values over the four lanes of a row: lane l gets the sum of value l.
__device__ __forceinline__ float add_quads(const float (&value)[4], int lane) {
  const bool high = lane & 2, odd = lane & 1;
  const float first =
      (high ? value[2] : value[0]) + __shfl_xor_sync(~0u, high ? value[0] : value[2], 2);
  const float second =
      (high ? value[3] : value[1]) + __shfl_xor_sync(~0u, high ? value[1] : value[3], 2);
  return (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
}

// The log-sum-exps of one of the thread's two rows, which attends to `seen` of the tokens. One
// reference serves all 256 tokens: a tile whose weights vanish relative to it has no weight in the
// row either.
template <int kRow>
__device__ __forceinline__ void sum_tiles(const float (&scores)[kScores], float scale, int seen,
                                          int lane, float (&sums)[kSums]) {
  const auto at = [&](int j, int i) {
    return j * 8 + lane % 4 * 2 + i < seen ? scores[4 * j + 2 * kRow + i] : -INFINITY;
  };
  float row_max = -INFINITY;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) row_max = fmaxf(row_max, fmaxf(at(j, 0), at(j, 1)));
  row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 1));
  row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 2));
  const float reference = reference_of(row_max) * scale;
  const auto weight = [&](int j) {
    return power_of_2(at(j, 0) * scale - reference) + power_of_2(at(j, 1) * scale - reference);
  };
#pragma unroll
  for (int m = 0; m < kSums; ++m) {
    float sum[4];  // of tile m of each lane
#pragma unroll
    for (int owner = 0; owner < 4; ++owner) {
      const int first = (owner * kSums + m) * (kTile / 8);
      sum[owner] = weight(first);
#pragma unroll
      for (int j = 1; j < kTile / 8; ++j) sum[owner] += weight(first + j);
    }
    sums[m] = reference + __log2f(add_quads(sum, lane));
  }
}

// row: the thread's first row. kRow: 0, or 1 for the row eight further.
template <typename T, int kRow>
__device__ __forceinline__ void store_sums(const TileParams<T>& p, const TilePosition& position,
                                           int row, const float (&scores)[kScores], bool masked,
                                           int lane) {
  const int i = row + 8 * kRow;
  float sums[kSums];
  if (masked) {
    const int seen = i < p.strides() ? p.seen(i) - position.token : 0;
    sum_tiles<kRow>(scores, p.scale, seen, lane, sums);
  } else {
    sum_tiles<kRow>(scores, p.scale, kTokens, lane, sums);
  }
  const int tile = position.token / kTile + lane % 4 * kSums;
  if (i >= p.strides() || tile >= p.token_tiles) return;
  float* const to = p.sums_of(position.head, i) + tile;
  if (p.token_tiles % 4 == 0) {
#pragma unroll
    for (int m = 0; m < kSums; m += 4) {
      if (tile + m >= p.token_tiles) return;
      *reinterpret_cast<float4*>(to + m) =
          make_float4(sums[m], sums[m + 1], sums[m + 2], sums[m + 3]);
    }
    return;
  }
#pragma unroll
  for (int m = 0; m < kSums; ++m) {
    if (tile + m < p.token_tiles) to[m] = sums[m];
  }
}

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
