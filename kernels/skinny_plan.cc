#include "kernels/skinny_plan.h"

#include <algorithm>

namespace nvllm::kernels {
namespace {

constexpr int kTileOutputs = 64, kStageInputs = 64, kRowBytes = kStageInputs * 2;

// Of a multiprocessor's 227 KB, what comes between products needs some.
constexpr int kOneBlockBytes = 200 << 10, kTwoBlocksBytes = kOneBlockBytes / 2;

// A stage is free only when the next one has been multiplied; and one should be on its way.
constexpr int kLeastStages = 3;

// What a plan is estimated by, fitted to measurements of 12 shapes of 8 to 64 rows on an H200: bytes per nanosecond
// of the memory and of a block, nanoseconds of sums that meet and of each block's part of them.
constexpr double kMemory = 4900, kBlock = 46, kMeeting = 380, kPart = 60;

// With more rows reading the weights is not all, and cuBLASLt is as fast, unless the tiles are too few to fill the GPU or
// an activation need not be a kernel of its own.
constexpr std::int64_t kManyRows = 32;

int divide_up(std::int64_t a, std::int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

int room_for(std::int64_t rows) {
  return rows <= 32 ? 32 : 64;
}

int stage_bytes(const SkinnyPlan& plan) {
  constexpr int kBarriers = 16;
  return kRowBytes * (plan.tiles * kTileOutputs + plan.rows) + kBarriers;
}

double nanoseconds(const SkinnyPlan& plan, std::int64_t rows, std::int64_t outputs,
                   std::int64_t inputs) {
  const double stages = divide_up(divide_up(inputs, kStageInputs), plan.splits);
  const double own = stages * kRowBytes * static_cast<double>(plan.tiles * kTileOutputs + rows);
  const double all = static_cast<double>(outputs) * static_cast<double>(inputs) * 2;
  return std::max(all / kMemory, own / kBlock) +
         (plan.splits > 1 ? kMeeting + kPart * plan.splits : 0);
}

}  // namespace

int skinny_shared_bytes(const SkinnyPlan& plan) {
  constexpr int kAlignment = 1024;
  const int quads = plan.splits == 1 ? 0 : divide_up(plan.rows / 8, plan.splits) * plan.splits;
  return kAlignment + plan.stages * stage_bytes(plan) + quads * plan.tiles * 128 * 16 + 8;
}

std::optional<SkinnyPlan> plan_skinny(std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                                      bool gated, const SkinnyMachine& machine) {
  if (rows < kSkinnyMinRows || rows > kSkinnyMaxRows || outputs % kTileOutputs != 0 ||
      inputs % kStageInputs != 0 || outputs == 0 || inputs == 0) {
    return std::nullopt;
  }
  if (rows > kManyRows && inputs < outputs && !gated) return std::nullopt;
  std::optional<SkinnyPlan> best;
  double least = 0;
  for (int tiles = 1; tiles <= kSkinnyMaxTiles; ++tiles) {
    for (int splits = 1; splits <= kSkinnyMaxSplits; ++splits) {
      const int blocks = divide_up(outputs, tiles * kTileOutputs) * splits;
      const int steps = divide_up(inputs / kStageInputs, splits);
      const bool two_blocks = blocks > machine.places[splits];
      const int most_bytes = two_blocks ? kTwoBlocksBytes : kOneBlockBytes;
      SkinnyPlan plan{room_for(rows), tiles, splits, 0};
      const int room = most_bytes - skinny_shared_bytes(plan);
      plan.stages = std::clamp(room / stage_bytes(plan), 0, steps);
      // Two blocks on a multiprocessor were never the fastest with several tiles, nor where nearly all have two.
      const bool too_many = tiles > 1 ? two_blocks : blocks * 4 > 7 * machine.places[splits];
      const bool fits = plan.stages >= std::min(steps, kLeastStages) &&
                        inputs / kStageInputs >= splits && !too_many;
      if (!fits) continue;
      const double taken = nanoseconds(plan, rows, outputs, inputs);
      if (!best || taken < least) best = plan, least = taken;
    }
  }
  return best;
}

}  // namespace nvllm::kernels
