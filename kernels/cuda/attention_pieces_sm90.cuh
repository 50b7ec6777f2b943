// The pieces of work of attention on Hopper, 128 packed rows of a sequence and a KV head each: their order, and
// what a producer tells the consumers of one.
#pragma once

#include "kernels/cuda/attention_tiles_sm90.cuh"

namespace nvllm::kernels::cuda::sm90 {

// Pieces are numbered so that those with the longest way come first, but only among as many KV heads as the
// GPU's L2 holds the keys and values of.
struct Order {
  int row_blocks;  // of a KV head, at most
  int rows;        // of each
  int kv_heads;
  int heads_at_once;
  bool queries_in_bulk;  // a piece's queries are a box
  // Clusters take pieces that follow one another, the first ones four each, then some two each, the others one each: in
  // between, the next one's queries and tiles are copied while the last one ends. Or, with `in_turns`, there are only
  // as many clusters as run at a time, and each takes its next pieces from both ends alternately.
  int with_four, with_two;
  bool in_turns;

  __host__ __device__ int pieces() const { return row_blocks * kv_heads; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Piece {
  int sequence = -1;  // -1: there are no more
  int kv_head, block_row;
  int first_row, packed_rows, tokens, first_visible;  // AttentionPart's; rows up to the piece's last one
  int seen;  // tokens that the last row of the cluster sees

  template <typename T>
  __device__ __forceinline__ AttentionPart<T> part(const AttentionParams<T>& p) const {
    return {p, sequence, kv_head, first_row, packed_rows, tokens, first_visible};
  }

  __device__ __forceinline__ void store(unsigned to) const {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(sequence), "r"(kv_head),
                 "r"(block_row), "r"(first_row)
                 : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(packed_rows),
                 "r"(tokens), "r"(first_visible), "r"(seen)
                 : "memory");
  }
  __device__ __forceinline__ static Piece load(unsigned from) {
    Piece piece;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.sequence), "=r"(piece.kv_head), "=r"(piece.block_row),
                   "=r"(piece.first_row)
                 : "r"(from)
                 : "memory");
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.packed_rows), "=r"(piece.tokens), "=r"(piece.first_visible),
                   "=r"(piece.seen)
                 : "r"(from + 16)
                 : "memory");
    return piece;
  }
};

// All lanes of a warp call it together. -1 as sequence: the piece has no rows.
template <int kCluster, typename T>
__device__ __forceinline__ Piece find_piece(const AttentionParams<T>& p, const Order& order,
                                            int number) {
  const int together = order.row_blocks * order.heads_at_once;
  const int first_head = number / together * order.heads_at_once;
  const int heads = min(order.heads_at_once, order.kv_heads - first_head);
  const int rest = number % together;
  Piece piece;
  piece.kv_head = first_head + rest % heads;
  const RowBlock block = find_row_block(p, piece.kv_head, rest / heads, order.rows * kCluster);
  piece.sequence = block.sequence;
  if (block.sequence < 0) return piece;
  const AttentionPart<T> part(p, block.sequence, piece.kv_head);
  piece.block_row = block.first_row;
  if constexpr (kCluster > 1) piece.block_row += rank_in_cluster() * order.rows;
  piece.first_row = part.first_row;
  piece.packed_rows = min(part.packed_rows, piece.block_row + order.rows);
  piece.tokens = part.tokens;
  piece.first_visible = part.first_visible;
  piece.seen = seen_by(part, min(part.packed_rows, block.first_row + order.rows * kCluster));
  return piece;
}

// The number of the i-th piece of the block's cluster; -1: there are no more.
template <int kCluster>
__device__ __forceinline__ int number_of(const Order& order, int i) {
  const int cluster = static_cast<int>(blockIdx.x) / kCluster;
  int number;
  if (order.in_turns) {
    // Who had a long one has a short one next.
    const int clusters = static_cast<int>(gridDim.x) / kCluster;
    number = i * clusters + (i % 2 == 0 ? cluster : clusters - 1 - cluster);
    if (i * clusters >= order.pieces()) return -1;
    return number;
  }
  const int four = min(cluster, order.with_four);
  const int two = min(cluster - four, order.with_two);
  const int count = cluster < order.with_four ? 4 : cluster < order.with_four + order.with_two ? 2 : 1;
  number = cluster + 3 * four + two + i;
  return i < count ? number : -1;
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
