// Plans a small-M GEMM: how its work is divided among the thread blocks of its kernel
// (kernels/gemm/sm90/small_m.cuh), and whether that kernel is worth using.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>

namespace nvllm::kernels {

// The kernel is instantiated for these tile sizes of M. With 24 or 56 rows it was no faster than
// with 32 or 64.
inline constexpr std::array kSmallMTiles = {32, 40, 48, 64, 80, 96, 112, 128};

// With fewer rows kernels/gemm/sm80/gemv.cuh is at least as fast.
inline constexpr int kSmallMMinRows = 17, kSmallMMaxRows = kSmallMTiles.back();
inline constexpr int kSmallMMaxOutputTiles = 3;
inline constexpr int kSmallMMaxSplits = 8;

// The K-split is chosen together with tile M, so results depend on M; without split K they do not.
struct SmallMTiling {
  int tile_m = 0;    // rows of a block's tile, one of kSmallMTiles
  int tiles = 0;     // of 64 outputs each, per block
  int k_splits = 1;  // parts of the inputs, one per block of a cluster
  int stages = 0;    // of the ring in shared memory

  auto operator<=>(const SmallMTiling&) const = default;
};

// How a weight is loaded into shared memory, stage by stage: the bytes and inputs per output; for a
// quantized weight also one word of scales per group. With fp8_rows x is in fp8, too, and each
// stage, which is then one group, has a scale for each row.
struct SmallMWeight {
  int stage_inputs = 64, row_bytes = 128;
  int group = 0;  // 0: not quantized
  bool fp8_rows = false;

  bool quantized() const { return group > 0; }
  int x_bytes() const { return fp8_rows ? 1 : 2; }  // of an input
};

// Quantized weights have fewer instances: these tiles of M.
inline constexpr std::array kSmallMQuantizedTiles = {32, 64, 128};

// The number of resident blocks of a GPU, one per multiprocessor, by cluster size; all 0 on a GPU
// other than Hopper.
struct SmallMOccupancy {
  std::array<int, kSmallMMaxSplits + 1> blocks{};  // blocks[k_splits]
};

// Groups of an output whose scales a block holds: those of its part of the inputs.
int small_m_groups_per_split(const SmallMTiling& tiling, const SmallMWeight& weight,
                             std::int64_t inputs);

// Bytes of shared memory of a block. inputs: only with quantized weights.
int small_m_shared_bytes(const SmallMTiling& tiling, const SmallMWeight& weight = {},
                         std::int64_t inputs = 0);

// Returns nothing where another kernel is faster: too many rows, or a shape that does not fit or
// does not fill the GPU. invariant: no split K, and a tiling for every shape that fits, from one
// row on.
std::optional<SmallMTiling> plan_small_m(std::int64_t m, std::int64_t outputs, std::int64_t inputs,
                                         const SmallMOccupancy& gpu,
                                         const SmallMWeight& weight = {}, bool invariant = false);

}  // namespace nvllm::kernels
