// Vertical-slash selection of MInference: the columns of tokens (verticals) and the diagonals
// (slashes) that the rows of a prompt attend to, estimated from its last rows. The arithmetic of
// its index, which all backends share, is at the end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/common/host_device.h"
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

// The arithmetic of the index: from offsets to bands, and from bands to the ranges of a block.
//
// In a block of W = kSlashRows rows that ends before token e, offset o covers the distances (o, o +
// W] from e. Bands are merged intervals of distances: [a, b) stands for the tokens [e - b, e - a),
// for any e.

inline constexpr std::int32_t kSlashWidth = kSlashRows;

struct Band {
  std::int32_t a, b;
};

struct TokenRange {
  std::int32_t begin, end;
};

// Merges ascending offsets; adjacent bands become one. Returns the number of bands.
NVLLM_HOST_DEVICE std::int32_t merge_offsets(const std::int32_t* offsets, std::int64_t count,
                                             Band* bands) {
  std::int32_t combined = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t a = offsets[i], b = a + kSlashWidth;
    if (combined > 0 && a <= bands[combined - 1].b) {
      bands[combined - 1].b = b;
    } else {
      bands[combined++] = {a, b};
    }
  }
  return combined;
}

// How many of the ascending values are below `bound`; value(i) yields them.
template <typename Value>
NVLLM_HOST_DEVICE std::int32_t count_below(std::int32_t count, std::int32_t bound,
                                           const Value& value) {
  std::int32_t low = 0, high = count;
  while (low < high) {
    const std::int32_t middle = (low + high) / 2;
    if (value(middle) < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The ranges of one head for a block of rows.
struct BlockRanges {
  const Band* bands;
  std::int32_t e;      // the block's rows are [e - W, e)
  std::int32_t end;    // the end of the visible tokens: min(e, tokens)
  std::int32_t reach;  // the number of leading bands that begin below e
  bool base;           // an offset within W of e covers tokens [0, W), not only [0, e - o)
  bool joined;         // and this first range touches the second one

  NVLLM_HOST_DEVICE BlockRanges(const Band* bands, std::int32_t band_count,
                                const std::int32_t* offsets, std::int32_t offset_count,
                                std::int32_t e, std::int32_t end)
      : bands(bands), e(e), end(end) {
    reach = count_below(band_count, e, [&](std::int32_t i) { return bands[i].a; });
    const auto offset = [&](std::int32_t i) { return offsets[i]; };
    const std::int32_t below = count_below(offset_count, e, offset);
    base = below > 0 && offsets[below - 1] > e - kSlashWidth;
    joined = base && reach > 1 && e - bands[reach - 2].b <= kSlashWidth;
  }

  NVLLM_HOST_DEVICE std::int32_t ranges() const { return joined ? reach - 1 : reach; }

  // Range i of ranges(), in ascending order.
  NVLLM_HOST_DEVICE TokenRange range(std::int32_t i) const {
    const Band& first = bands[reach - 1 - i];
    const Band& last = joined ? bands[reach - 2 - i] : first;
    if (joined && i > 0) return clipped(e - last.b, e - last.a);
    std::int32_t to = e - last.a;
    if (base && i == 0 && to < kSlashWidth) to = kSlashWidth;
    return clipped(e - first.b, to);
  }

  // Whether a token is visible to the block, but in none of its ranges.
  NVLLM_HOST_DEVICE bool outside(std::int32_t token) const {
    if (token >= end || (base && token < kSlashWidth)) return false;
    const std::int32_t distance = e - token;
    const std::int32_t before =
        count_below(reach, distance, [&](std::int32_t i) { return bands[i].a; });
    return before == 0 || distance > bands[before - 1].b;
  }

 private:
  NVLLM_HOST_DEVICE TokenRange clipped(std::int32_t begin, std::int32_t to) const {
    return {begin < 0 ? 0 : begin, to < end ? to : end};
  }
};

}  // namespace nvllm::kernels
