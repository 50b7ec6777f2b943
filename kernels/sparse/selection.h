// Shared by the references and the CPU implementations: selection of tiles, tokens or pages by
// score.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sparse/block_mask.h"
#include "kernels/sparse/vertical_slash.h"

namespace nvllm::kernels {

// The tiles of tokens that a tile of rows attends to, and the first of those on its diagonal.
struct TileReach {
  std::int64_t tiles, diagonal;

  TileReach(std::int64_t first_position, std::int64_t rows, std::int64_t row_tile) {
    const std::int64_t first = first_position + row_tile * kMaskTile;
    const std::int64_t last = first_position + std::min((row_tile + 1) * kMaskTile, rows) - 1;
    diagonal = first / kMaskTile;
    tiles = last / kMaskTile + 1;
  }
  bool always(std::int64_t tile) const { return tile == 0 || tile >= diagonal; }
};

// Selects tiles top-p: those that are always kept, then the highest of the reach.tiles scores,
// until they add up to `threshold` of the total. Writes them in ascending order and returns their
// number. `order` is scratch memory.
template <typename Score>
std::int32_t top_p_tiles(const Score* scores, const TileReach& reach, float threshold,
                         std::vector<std::int32_t>& order, std::int32_t* kept) {
  order.resize(reach.tiles);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const bool first = reach.always(a), second = reach.always(b);
    if (first != second) return first;
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  double total = 0, covered = 0;
  for (std::int64_t tile = 0; tile < reach.tiles; ++tile) total += scores[tile];
  std::int32_t count = 0;
  for (const std::int32_t tile : order) {
    const bool enough = threshold < 1 && covered >= threshold * total;
    if (enough && !reach.always(tile)) break;
    covered += scores[tile];
    kept[count++] = tile;
  }
  std::sort(kept, kept + count);
  return count;
}

// Selects the `count` highest scores (ties by ascending index), and writes their indices in
// ascending order. `order` is scratch memory.
template <typename Score>
void top_k(const Score* scores, std::int64_t all, std::int64_t count,
           std::vector<std::int32_t>& order, std::int32_t* kept) {
  order.resize(all);
  std::iota(order.begin(), order.end(), 0);
  if (count < all) {
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end(),
                     [&](std::int32_t a, std::int32_t b) {
                       return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                     });
  }
  std::copy_n(order.begin(), count, kept);
  std::sort(kept, kept + count);
}

// Selects the columns and offsets of a head by their sums, which are overwritten for lines that are
// always kept.
template <typename Score>
void top_k_lines(const VerticalSlash& args, std::int64_t head, Score* by_token, Score* by_offset) {
  const std::int64_t tokens = args.prompt.tokens();
  std::vector<std::int32_t> order;
  const auto select = [&](Score* sums, std::int64_t always, const TensorView& lines) {
    std::fill_n(sums, std::min(always, tokens), std::numeric_limits<Score>::infinity());
    const std::int64_t count = lines.shape[1];
    top_k(sums, tokens, count, order, lines.as<std::int32_t>() + head * count);
  };
  select(by_token, kFirstVerticals, args.columns);
  select(by_offset, kFirstSlashes, args.offsets);
}

}  // namespace nvllm::kernels
