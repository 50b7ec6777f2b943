// XAttention: which tiles of keys the tiles of a prompt's rows attend to, by sums along antidiagonals.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/sparse/prompt_rows.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kStride = 16;     // rows and tokens that one strided score is of
inline constexpr std::int64_t kMaskTile = 128;  // rows, or tokens, of a tile
inline constexpr std::int64_t kTileStrides = kMaskTile / kStride;

// Strided row i is rows 8 i to 8 i + 7, strided token j is tokens 8 j to 8 j + 7. Their score is the sum
// along the antidiagonals of their square,
//   S[i][j] = sum_t q[8 i + 7 - t] · k[8 j + t],   t = 0 .. 7,
// where what does not exist counts as zero. A strided row sees the strided tokens that begin no later than
// it ends. Tile I of rows is [128 I, 128 I + 128), tile J of tokens likewise, and
//   score[I][J] = sum of softmax_j(S[i][j] scale / 8) over the strided rows i of I and tokens j of J.
// For every tile of rows and head, kept are tile 0, the tiles on the diagonal, and of the others those of the
// highest scores, lower ones first where they are equal, until the kept ones' scores are at least
// `threshold` of the sum of all. A threshold of 1 keeps all, and so do tiles with any of the last dense_rows rows:
// of one row's interest in one token a strided score sees nothing in most places.
struct BlockMask {
  PromptRows prompt;
  TensorView tiles;  // [tiles of rows, heads, capacity], int32, ascending; the rest is undefined
  TensorView tile_counts;  // [tiles of rows, heads], int32
  TensorView workspace;    // [block_mask_workspace(...)], uint8
  // Room for keys, one token behind the other: [at least token_tiles() * kMaskTile, kv_heads, head_dim], of
  // q's type, dense. May be none; it makes the choice faster on Hopper. An earlier call for the same keys may
  // have left those of so many tokens there.
  TensorView gathered;
  std::int64_t gathered_tokens = 0;
  float threshold = 0.95f;
  std::int64_t dense_rows = 0;

  std::int64_t row_tiles() const { return (prompt.rows() + kMaskTile - 1) / kMaskTile; }
  // From this tile of rows on all is kept.
  std::int64_t first_dense_tile() const {
    const std::int64_t before = std::max<std::int64_t>(prompt.rows() - dense_rows, 0);
    return dense_rows > 0 ? before / kMaskTile : row_tiles();
  }
  float threshold_of(std::int64_t row_tile) const {
    return row_tile < first_dense_tile() ? threshold : 1;
  }
  std::int64_t token_tiles() const { return (prompt.tokens() + kMaskTile - 1) / kMaskTile; }
};

// Of float32: a log-sum-exp for each head, strided row and tile of tokens.
std::size_t block_mask_workspace(std::int64_t rows, std::int64_t heads, std::int64_t tokens);

// Enqueues it. capacity must be at least token_tiles().
void block_mask(const BlockMask& args, Stream& stream);

void check_block_mask(const BlockMask& args);

// The plain definition, run at once by the caller; leaves the workspace alone. scores: [tiles of rows,
// heads, token_tiles()], filled in if not nullptr.
void block_mask_reference(const BlockMask& args, double* scores = nullptr);

}  // namespace nvllm::kernels
