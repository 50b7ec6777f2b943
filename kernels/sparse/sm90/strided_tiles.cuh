// The tiles of strided rows and tokens that blocks on Hopper work on, and the ring of stages in shared memory
// (select_tiles_sm90.cu).
#pragma once

#include "kernels/common/sm90/tma.cuh"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/sparse/sm80/block_mask.cuh"

namespace nvllm::kernels::cuda::strided {

inline constexpr int kRows = 128, kTokens = 256;  // strided, of a tile
inline constexpr int kCluster =
    2;  // blocks that work on the same tokens, and copy a part of them each
inline constexpr int kConsumers = 2, kGroupThreads = 128;
inline constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
inline constexpr int kGroupRows = kRows / kConsumers;
inline constexpr int kStages = 4;
inline constexpr int kRowBytes = kDepth * 2;
inline constexpr int kRowsBytes = kRows * kRowBytes, kTokensBytes = kTokens * kRowBytes;
inline constexpr int kStageBytes = kRowsBytes + kTokensBytes;
inline constexpr int kAlignment = 1024, kBarrierBytes = 128;
inline constexpr int kSharedBytes = kStages * kStageBytes + kBarrierBytes + kAlignment;
inline constexpr int kTogether = 4;  // tiles of rows of a head that are worked on together

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where a tile begins.
struct Place {
  int head, row, token;
};

// A block's tiles, one after the other, in an order in which those that all blocks are at share rows and tokens:
// parts are the heads of a KV head and kTogether tiles of rows, against one tile of tokens after the other. The
// blocks of a cluster are at the same tokens. Producer and consumers walk alike.
template <typename T>
class Walk {
 public:
  __device__ __forceinline__ explicit Walk(const TileParams<T>& p)
      : p_(p), left_(static_cast<int>(blockIdx.x) / kCluster) {
    enter_kv_head();
  }

  // False when there are no more. A block whose cluster has one more tile than it has gets one beyond all rows.
  __device__ __forceinline__ bool next(Place& place) {
    for (const int clusters = static_cast<int>(gridDim.x) / kCluster;; left_ += clusters) {
      int turns = (rows_ * heads_ + kCluster - 1) / kCluster;
      while (left_ >= turns * token_tiles_) {
        left_ -= turns * token_tiles_;
        if (!next_part()) return false;
        turns = (rows_ * heads_ + kCluster - 1) / kCluster;
      }
      const int first = left_ % turns * kCluster;
      const int last = min(first + kCluster, rows_ * heads_) - 1;
      const int own = first + static_cast<int>(blockIdx.x) % kCluster;
      place.head = head_ + own % heads_;
      place.row = own <= last ? row_ + own / heads_ * kRows : p_.strides();
      place.token = left_ / turns * kTokens;
      if (place.token < seen_to(row_ + last / heads_ * kRows)) {
        left_ += clusters;
        return true;
      }
    }
  }

 private:
  // Strided tokens that a tile of rows sees.
  __device__ __forceinline__ int seen_to(int row) const {
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
    token_tiles_ = (seen_to(row_ + (rows_ - 1) * kRows) + kTokens - 1) / kTokens;
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
  int left_;  // clusters' turns from the part's first to the next one of this cluster
  int head_ = 0, next_head_ = 0, heads_ = 0, row_ = 0, rows_ = 0, token_tiles_ = 0;
};

// Where a block has what.
struct Shared {
  unsigned base;

  __device__ __forceinline__ explicit Shared(const void* memory)
      : base((shared_address(memory) + kAlignment - 1) & ~(kAlignment - 1)) {}
  __device__ __forceinline__ unsigned rows(int stage) const { return base + stage * kStageBytes; }
  __device__ __forceinline__ unsigned tokens(int stage) const { return rows(stage) + kRowsBytes; }
  __device__ __forceinline__ Barrier full(int stage) const { return {rows(kStages) + stage * 8}; }
  __device__ __forceinline__ Barrier empty(int stage) const { return full(kStages + stage); }
};

// Which stage of the ring is next, and the parity of its barriers' phase.
struct Turn {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// What follows is of clusters: a barrier of another block (whoever arrives has written
// nothing: a release at the cluster would cost a fence of all memory); a box to the same place in all
// blocks, telling their barriers.
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

#endif

}  // namespace nvllm::kernels::cuda::strided
