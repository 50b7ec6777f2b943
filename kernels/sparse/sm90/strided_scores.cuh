// The parts of the strided GEMM on Hopper (block_mask.cu): the ring of stages in shared memory, the
// order in which blocks process tiles of strided rows and tokens, and the reduction of a tile's
// scores, which consumers have in registers, to a log-sum-exp per strided row and tile of kTile
// strided tokens.
#pragma once

#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/sparse/sm80/block_mask.cuh"

namespace nvllm::kernels::cuda::strided {

inline constexpr int kRows = 128, kTokens = 256;  // strided, of a tile
inline constexpr int kCluster =
    2;  // blocks that process the same tokens and copy a part of them each
inline constexpr int kConsumers = 2, kGroupThreads = 128;
inline constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
inline constexpr int kGroupRows = kRows / kConsumers;
inline constexpr int kStages = 4;
inline constexpr int kRowBytes = kDepth * 2;
inline constexpr int kRowsBytes = kRows * kRowBytes, kTokensBytes = kTokens * kRowBytes;
inline constexpr int kStageBytes = kRowsBytes + kTokensBytes;
inline constexpr int kAlignment = 1024, kBarrierBytes = 128;
inline constexpr int kSharedBytes = kStages * kStageBytes + kBarrierBytes + kAlignment;
inline constexpr int kTogether = 4;  // tiles of rows of a head that are processed together

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

inline constexpr int kScores = kTokens / 2;        // per thread, of two rows (layout: wgmma.cuh)
inline constexpr int kSums = kTokens / kTile / 4;  // per thread and row, of consecutive tiles
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

#endif

}  // namespace nvllm::kernels::cuda::strided
