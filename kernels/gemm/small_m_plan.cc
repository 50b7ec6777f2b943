#include "kernels/gemm/skinny_plan.h"

#include <algorithm>

namespace nvllm::kernels {
namespace {

constexpr int kTileOutputs = 64, kStageInputs = 64, kRowBytes = kStageInputs * 2;
constexpr int kBarriersBytes = 16;                        // of a stage
constexpr int kQuadBytes = 128 * 16, kBetweenQuads = 64;  // of sums

// Of a multiprocessor's 227 KB, what comes between products needs some.
constexpr int kOneBlockBytes = 200 << 10, kTwoBlocksBytes = kOneBlockBytes / 2;

// Of more rows than these other kernels make products as fast or faster, unless they are so short that it is what lies
// between products that takes the time: norms and activations of their own.
constexpr int kFewRows = 112;
constexpr std::int64_t kShortBytes = 16 << 20;

// A stage is free only when the next one has been multiplied; and one should be on its way.
constexpr int kLeastStages = 3;

// What a plan is estimated by, fitted to whole steps of 24 to 64 rows on an H200 with other plans for a product: bytes per
// nanosecond of the memory, of the L2 (weights and x) and of a block; nanoseconds of sums that meet, and of 16 rows of a
// block's tile among them.
constexpr double kMemory = 4200, kL2 = 8000, kBlock = 62, kMeeting = 1000, kPart = 30;

int divide_up(std::int64_t a, std::int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

int room_for(std::int64_t rows) {
  return *std::ranges::lower_bound(kSkinnyRooms, rows);
}

int stage_bytes(const SkinnyPlan& plan) {
  return kRowBytes * (plan.tiles * kTileOutputs + plan.rows);
}

// The same for all rows that a plan has room for, so that plans are.
double nanoseconds(const SkinnyPlan& plan, std::int64_t outputs, std::int64_t inputs,
                   bool two_blocks) {
  const double stages = divide_up(divide_up(inputs, kStageInputs), plan.splits);
  const double own = stages * kRowBytes * (plan.tiles * kTileOutputs + plan.rows);
  const double weights = static_cast<double>(outputs) * static_cast<double>(inputs) * 2;
  const double with_x =
      weights * (1 + static_cast<double>(plan.rows) / (plan.tiles * kTileOutputs));
  const double reading =
      std::max({weights / kMemory, with_x / kL2, (two_blocks ? 2 : 1) * own / kBlock});
  const double parts = plan.splits * plan.tiles * plan.rows / 16.0;
  return reading + (plan.splits > 1 ? kMeeting + kPart * parts : 0);
}

}  // namespace

int skinny_shared_bytes(const SkinnyPlan& plan) {
  constexpr int kAlignment = 1024;
  const int ring = plan.stages * stage_bytes(plan);
  const int sums = divide_up(plan.rows / 8, plan.splits) *
                   (plan.splits * plan.tiles * kQuadBytes + kBetweenQuads);
  const int both = plan.splits == 1 ? std::max(ring, sums) : ring + sums;
  const int squares = plan.tiles * 4 * plan.rows * 4;  // a float of each warp and row
  return kAlignment + both + squares + plan.stages * kBarriersBytes + 8;
}

std::optional<SkinnyPlan> plan_skinny(std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                                      const SkinnyMachine& machine) {
  if (rows < kSkinnyMinRows || rows > kSkinnyMaxRows || outputs % kTileOutputs != 0 ||
      inputs % kStageInputs != 0 || outputs == 0 || inputs == 0) {
    return std::nullopt;
  }
  if (rows > kFewRows && outputs * inputs * 2 > kShortBytes) return std::nullopt;
  std::optional<SkinnyPlan> best;
  double least = 0;
  for (int tiles = 1; tiles <= kSkinnyMaxTiles; ++tiles) {
    for (int splits = 1; splits <= kSkinnyMaxSplits; ++splits) {
      const int blocks = divide_up(outputs, tiles * kTileOutputs) * splits;
      const int steps = divide_up(inputs / kStageInputs, splits);
      const bool two_blocks = blocks > machine.places[splits];
      const int most_bytes = two_blocks ? kTwoBlocksBytes : kOneBlockBytes;
      SkinnyPlan plan{room_for(rows), tiles, splits, 0};
      plan.stages = std::min(steps, most_bytes / stage_bytes(plan));
      while (plan.stages > 0 && skinny_shared_bytes(plan) > most_bytes) --plan.stages;
      // Two blocks on a multiprocessor were never the fastest with several tiles, nor where nearly all have two.
      const bool too_many = tiles > 1 ? two_blocks : blocks * 4 > 7 * machine.places[splits];
      const bool fits = plan.stages >= std::min(steps, kLeastStages) &&
                        inputs / kStageInputs >= splits && !too_many;
      if (!fits) continue;
      const double taken = nanoseconds(plan, outputs, inputs, two_blocks);
      if (!best || taken < least) best = plan, least = taken;
    }
  }
  return best;
}

}  // namespace nvllm::kernels
