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

// A block's pieces: the first round goes to the blocks in their order, the next one in the opposite order, and so on,
// so that who had a long one has a short one next.
template <int kCluster>
__device__ __forceinline__ int number_of(int round) {
  const int blocks = static_cast<int>(gridDim.x) / kCluster;
  const int block = static_cast<int>(blockIdx.x) / kCluster;
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
