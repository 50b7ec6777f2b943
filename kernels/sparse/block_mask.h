// Block mask of XAttention: the tiles of keys that each tile of a prompt's rows attends to,
// estimated by antidiagonal sums.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/sparse/prompt_rows.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kStride = 16;     // rows and tokens of one strided score
inline constexpr std::int64_t kMaskTile = 128;  // rows, or tokens, of a tile
inline constexpr std::int64_t kTileStrides = kMaskTile / kStride;

// With n = kStride: strided row i is rows n i to n i + n - 1, strided token j is tokens n j to n j
// + n - 1. Their score is the sum along an antidiagonal of their square,
//   S[i][j] = sum_t q[n i + n - 1 - t] · k[n j + t],   t = 0 .. n - 1,
// where missing elements count as zero. A strided row attends to the strided tokens that begin no
// later than it ends. Tile I of rows is [128 I, 128 I + 128), tile J of tokens likewise, and
//   score[I][J] = sum of softmax_j(S[i][j] scale / n) over strided rows i of I and tokens j of J.
// For every tile of rows and head, the mask keeps tile 0, the tiles on the diagonal, and the
// highest-scoring others (ties by ascending tile), until the scores of the kept tiles add up to at
// least `threshold` of the total. A threshold of 1 keeps all. Tiles with any of the last dense_rows
// rows keep all, too: strided scores mostly miss the attention of a single row to a single token.
struct BlockMask {
  PromptRows prompt;
  TensorView tiles;  // [tiles of rows, heads, capacity], int32, ascending; the rest is undefined
  TensorView tile_counts;  // [tiles of rows, heads], int32
  TensorView workspace;    // [block_mask_workspace(...)], uint8
  // Memory for contiguous keys: [at least token_tiles() * kMaskTile, kv_heads, head_dim], of the
  // type of q, dense. Optional; makes the mask faster on Hopper. An earlier call for the same keys
  // may have filled in the first gathered_tokens tokens.
  TensorView gathered;
  std::int64_t gathered_tokens = 0;
  float threshold = 0.95f;
  std::int64_t dense_rows = 0;

  std::int64_t row_tiles() const { return (prompt.rows() + kMaskTile - 1) / kMaskTile; }
  // From this tile of rows on, all tiles are kept.
  std::int64_t first_dense_tile() const {
    const std::int64_t before = std::max<std::int64_t>(prompt.rows() - dense_rows, 0);
    return dense_rows > 0 ? before / kMaskTile : row_tiles();
  }
  float threshold_of(std::int64_t row_tile) const {
    return row_tile < first_dense_tile() ? threshold : 1;
  }
  std::int64_t token_tiles() const { return (prompt.tokens() + kMaskTile - 1) / kMaskTile; }
};

// Bytes: a log-sum-exp in float32 for each head, strided row and tile of tokens.
std::size_t block_mask_workspace(std::int64_t rows, std::int64_t heads, std::int64_t tokens);

// The capacity of tiles must be at least token_tiles().
void block_mask(const BlockMask& args, Stream& stream);
void check_block_mask(const BlockMask& args);

}  // namespace nvllm::kernels
