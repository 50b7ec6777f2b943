// Vertical-slash selection of MInference: the columns of tokens (verticals) and the diagonals
// (slashes) that the rows of a prompt attend to, estimated from its last rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/sparse/prompt_rows.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kEstimationRows = 64;  // the last rows of a prompt
inline constexpr std::int64_t kSlashRows = 128;      // rows of a block that share their ranges
inline constexpr std::int64_t kFirstVerticals = 30;  // always kept: tokens 0 to 29
inline constexpr std::int64_t kFirstSlashes = 100;   // always kept: offsets 0 to 99

struct VerticalSlashBudget {
  std::int64_t verticals = 0;
  std::int64_t slashes = 0;
};

// The budget for a prompt: with B = 0.3 tokens, max(31, B / 5) verticals and max(101, 4 B / 5)
// slashes; at most 1000 and 6096, which suffice from about 25000 tokens on, and at most tokens.
VerticalSlashBudget vertical_slash_budget(std::int64_t tokens);

// A is the causal softmax, over all tokens, of the last L = min(64, rows) rows of the prompt; S =
// tokens().
//   v[j] = sum_i A[i][j],  s[o] = sum_i A[i][S - L + i - o]   (offset o: tokens before the row)
// Selected per head: tokens 0 to 29 and those with the highest v; offsets 0 to 99 and those with
// the highest s; ties by ascending index.
struct VerticalSlash {
  PromptRows prompt;
  TensorView columns;    // [heads, verticals], int32, ascending: tokens
  TensorView offsets;    // [heads, slashes], int32, ascending
  TensorView workspace;  // [vertical_slash_workspace(...)], uint8

  std::int64_t estimation_rows() const;
};

std::size_t vertical_slash_workspace(std::int64_t heads, std::int64_t tokens);

// verticals and slashes: 1 to tokens(), or to the number that is always kept if that is larger.
void vertical_slash(const VerticalSlash& args, Stream& stream);
void check_vertical_slash(const VerticalSlash& args);

// The vertical-slash index: lists of the tokens that blocks of 128 rows attend to. The block whose
// rows end before token e (block b of rows from first_position on: e = first_position + 128 (b +
// 1)) attends, for every selected offset o < e, to tokens [x - 128, x) with x = max(e - o, 128).
// These are its ranges, merged where they touch. It also attends to the selected columns. Both end
// at the last row.
struct VerticalSlashIndex {
  TensorView columns;  // as vertical_slash() writes them
  TensorView offsets;
  std::int64_t first_position = 0;
  std::int64_t rows = 0;
  TensorView bands;  // [heads, slashes + 1, 2], int32: written by slash_bands() filled in

  TensorView ranges;  // [blocks, heads, capacity, 2], int32: [begin, end), ascending, disjoint
  TensorView range_counts;  // [blocks, heads], int32
  TensorView singles;  // [blocks, heads, verticals], int32, ascending: columns outside the ranges
  TensorView single_counts;  // [blocks, heads], int32

  std::int64_t blocks() const { return (rows + kSlashRows - 1) / kSlashRows; }
  std::int64_t heads() const { return columns.shape[0]; }
};

// The maximum number of ranges of a block: the capacity that vertical_slash_index() requires.
std::int64_t max_slash_ranges(std::int64_t tokens, std::int64_t slashes);

// Runs once per selection: merges the offsets into bands of distances, so that the ranges of a
// block are the shifted bands. bands[h][0] is {count, 0}.
void slash_bands(TensorView bands, TensorView offsets, Stream& stream);

// For any rows of the prompt.
void vertical_slash_index(const VerticalSlashIndex& args, Stream& stream);
void check_vertical_slash_index(const VerticalSlashIndex& args);

}  // namespace nvllm::kernels
