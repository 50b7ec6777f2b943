#include "kernels/gemm/small_m_plan.h"

#include <algorithm>

namespace nvllm::kernels {
namespace {

constexpr int kTileOutputs = 64;
constexpr int kBarriersBytes = 16;                        // of a stage
constexpr int kQuadBytes = 128 * 16, kBetweenQuads = 64;  // of sums

// The shared memory that blocks may use. Kernels between two GEMMs need some of a multiprocessor's
// 227 KB.
constexpr int kOneBlockBytes = 200 << 10, kTwoBlocksBytes = kOneBlockBytes / 2;

// With more rows other kernels are as fast or faster, unless the weight is so small that the
// kernels between two GEMMs take the time: norms and activations of their own.
constexpr int kFewRows = 112;
constexpr std::int64_t kSmallWeightBytes = 16 << 20;

// A stage is free only when the next one has been multiplied; and one should be on its way.
constexpr int kMinStages = 3;

// What the time of a tiling is estimated by, fitted to whole decode steps of 24 to 64 rows on an
// H200 with different tilings: bytes per nanosecond of the memory, of the L2 (weights and x) and of
// one block; nanoseconds for the reduction in a cluster, and in it for 16 rows of a block's tile.
constexpr double kMemory = 4200, kL2 = 8000, kBlock = 62, kReduction = 1000, kReducedRows = 30;

int divide_up(std::int64_t a, std::int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

int tile_m_for(std::int64_t m, const SmallMWeight& weight) {
  if (weight.quantized()) return *std::ranges::lower_bound(kSmallMQuantizedTiles, m);
  return *std::ranges::lower_bound(kSmallMTiles, m);
}

int stage_bytes(const SmallMTiling& tiling, const SmallMWeight& weight) {
  return tiling.tiles * kTileOutputs * weight.row_bytes +
         tiling.tile_m * weight.stage_inputs * weight.x_bytes();
}

// Depends on tile M, not on M, and so does the choice.
double nanoseconds(const SmallMTiling& tiling, std::int64_t outputs, std::int64_t inputs,
                   bool two_blocks, int waves, const SmallMWeight& weight) {
  const double stages = divide_up(divide_up(inputs, weight.stage_inputs), tiling.k_splits);
  const double own = stages * stage_bytes(tiling, weight);
  const double weights = static_cast<double>(outputs) * static_cast<double>(inputs) *
                         weight.row_bytes / weight.stage_inputs;
  const double x_bytes =
      static_cast<double>(tiling.tile_m) * weight.stage_inputs * weight.x_bytes();
  const double with_x = weights * (1 + x_bytes / (tiling.tiles * kTileOutputs * weight.row_bytes));
  const double in_turns = (two_blocks ? 2 : waves) * own / kBlock;
  const double reading = std::max({weights / kMemory, with_x / kL2, in_turns});
  const double parts = tiling.k_splits * tiling.tiles * tiling.tile_m / 16.0;
  return reading + waves * (tiling.k_splits > 1 ? kReduction + kReducedRows * parts : 0);
}

}  // namespace

int small_m_groups_per_split(const SmallMTiling& tiling, const SmallMWeight& weight,
                             std::int64_t inputs) {
  if (!weight.quantized()) return 0;
  const int steps = divide_up(divide_up(inputs, weight.stage_inputs), tiling.k_splits);
  return divide_up(steps * weight.stage_inputs, weight.group) + 1;  // it may begin inside of one
}

int small_m_shared_bytes(const SmallMTiling& tiling, const SmallMWeight& weight,
                         std::int64_t inputs) {
  constexpr int kAlignment = 1024;
  const int ring = tiling.stages * stage_bytes(tiling, weight);
  const int sums = divide_up(tiling.tile_m / 8, tiling.k_splits) *
                   (tiling.k_splits * tiling.tiles * kQuadBytes + kBetweenQuads);
  const int both = tiling.k_splits == 1 ? std::max(ring, sums) : ring + sums;
  const int squares = tiling.tiles * 4 * tiling.tile_m * 4;  // a float of each warp and row
  const int scales = weight.quantized() ? tiling.tiles * kTileOutputs * 4 *
                                              (small_m_groups_per_split(tiling, weight, inputs) | 1)
                                        : 0;
  const int row_scales = weight.fp8_rows ? tiling.stages * tiling.tile_m * 4 : 0;
  return kAlignment + both + squares + row_scales + tiling.stages * kBarriersBytes + 8 + scales;
}

std::optional<SmallMTiling> plan_small_m(std::int64_t m, std::int64_t outputs, std::int64_t inputs,
                                         const SmallMOccupancy& gpu, const SmallMWeight& weight,
                                         bool invariant) {
  const int min_rows = invariant ? 1 : kSmallMMinRows;
  if (m < min_rows || m > kSmallMMaxRows || outputs % kTileOutputs != 0 ||
      inputs % (weight.quantized() && !weight.fp8_rows ? 8 : weight.stage_inputs) != 0 ||
      outputs == 0 || inputs == 0) {
    return std::nullopt;
  }
  if (!weight.quantized() && m > kFewRows && outputs * inputs * 2 > kSmallWeightBytes)
    return std::nullopt;
  std::optional<SmallMTiling> best;
  double best_time = 0;
  const std::int64_t all_steps = divide_up(inputs, weight.stage_inputs);
  for (int tiles = 1; tiles <= kSmallMMaxOutputTiles; ++tiles) {
    for (int splits = 1; splits <= (invariant ? 1 : kSmallMMaxSplits); ++splits) {
      const int blocks = divide_up(outputs, tiles * kTileOutputs) * splits;
      const int steps = divide_up(all_steps, splits);
      if (gpu.blocks[splits] == 0) continue;
      const bool two_blocks = blocks > gpu.blocks[splits] && !weight.quantized();
      const int max_bytes = two_blocks ? kTwoBlocksBytes : kOneBlockBytes;
      SmallMTiling tiling{tile_m_for(m, weight), tiles, splits, 0};
      tiling.stages = std::min(steps, max_bytes / stage_bytes(tiling, weight));
      while (tiling.stages > 0 && small_m_shared_bytes(tiling, weight, inputs) > max_bytes)
        --tiling.stages;
      // Two blocks on a multiprocessor were never the fastest with several tiles, nor where nearly
      // all multiprocessors have two.
      const bool too_many = !weight.quantized() && !invariant &&
                            (tiles > 1 ? two_blocks : blocks * 4 > 7 * gpu.blocks[splits]);
      // Quantized weights take what there is, since all other ways are slower: one wave of blocks
      // after the other.
      const int waves = weight.quantized() ? divide_up(blocks, gpu.blocks[splits]) : 1;
      const bool fits =
          tiling.stages >= std::min(steps, kMinStages) && all_steps >= splits && !too_many;
      if (!fits) continue;
      const double time = nanoseconds(tiling, outputs, inputs, two_blocks, waves, weight);
      if (!best || time < best_time) best = tiling, best_time = time;
    }
  }
  return best;
}

}  // namespace nvllm::kernels
