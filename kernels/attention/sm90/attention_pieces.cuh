// The pieces of work of attention on Hopper, up to 128 packed rows of a sequence and a KV head each: in which order
// blocks take them, and what a block's producer tells its consumers of one.
#pragma once

#include "kernels/attention/sm90/attention_tiles.cuh"

namespace nvllm::kernels::cuda::sm90 {

// Pieces have numbers: those with the longest way come first, but only among as many KV heads as the GPU's L2 holds
// the keys and values of.
struct Order {
  int row_blocks;  // of a KV head, at most
  int rows;        // packed ones, of each
  int kv_heads;
  int heads_at_once;
  bool queries_in_bulk;  // a piece's queries are a box
  // A block with several pieces copies the queries and tiles of the next one while the last one ends, but which
  // block has how much to do is only made even by many blocks with little each. So the first blocks take four
  // pieces that follow one another, some more two, all others one.
  int with_four, with_two;
  // Or there are only as many blocks as run at a time: each takes its next pieces from both ends alternately.
  bool in_turns;

  __host__ __device__ int pieces() const { return row_blocks * kv_heads; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Piece {
  int sequence = -1;  // -1: it has no rows
  int kv_head, block_row;
  int first_row, packed_rows, tokens, first_visible;  // AttentionPart's; no rows beyond the piece

  template <typename T>
  __device__ __forceinline__ AttentionPart<T> part(const AttentionParams<T>& p) const {
    return {p, sequence, kv_head, first_row, packed_rows, tokens, first_visible};
  }

  __device__ __forceinline__ void store(unsigned to) const {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(sequence), "r"(kv_head),
                 "r"(block_row), "r"(first_row)
                 : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(packed_rows),
                 "r"(tokens), "r"(first_visible), "r"(0)
                 : "memory");
  }
  __device__ __forceinline__ static Piece load(unsigned from) {
    Piece piece;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.sequence), "=r"(piece.kv_head), "=r"(piece.block_row),
                   "=r"(piece.first_row)
                 : "r"(from)
                 : "memory");
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(piece.packed_rows), "=r"(piece.tokens)
                 : "r"(from + 16)
                 : "memory");
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(piece.first_visible) : "r"(from + 24) : "memory");
    return piece;
  }
};

// All lanes of a warp call it together.
template <typename T>
__device__ __forceinline__ Piece find_piece(const AttentionParams<T>& p, const Order& order,
                                            int number) {
  const int together = order.row_blocks * order.heads_at_once;
  const int first_head = number / together * order.heads_at_once;
  const int heads = min(order.heads_at_once, order.kv_heads - first_head);
  const int rest = number % together;
  Piece piece;
  piece.kv_head = first_head + rest % heads;
  const RowBlock block = find_row_block(p, piece.kv_head, rest / heads, order.rows);
  piece.sequence = block.sequence;
  if (block.sequence < 0) return piece;
  const AttentionPart<T> part(p, block.sequence, piece.kv_head);
  piece.block_row = block.first_row;
  piece.first_row = part.first_row;
  piece.packed_rows = min(part.packed_rows, block.first_row + order.rows);
  piece.tokens = part.tokens;
  piece.first_visible = part.first_visible;
  return piece;
}

// The number of this block's i-th piece; -1: there are no more.
__device__ __forceinline__ int number_of(const Order& order, int i) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  if (order.in_turns) {
    const int number = i * blocks + (i % 2 == 0 ? block : blocks - 1 - block);
    return i * blocks < order.pieces() ? number : -1;
  }
  const int four = min(block, order.with_four), two = min(block - four, order.with_two);
  const int count = block < order.with_four ? 4 : block < order.with_four + order.with_two ? 2 : 1;
  return i < count ? block + 3 * four + two + i : -1;
}

#endif

}  // namespace nvllm::kernels::cuda::sm90
