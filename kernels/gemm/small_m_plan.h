// How the work of a small-M GEMM is divided among the thread blocks of its kernel
// (kernels/gemm/sm90/small_m.cuh), and whether that kernel is worth it.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>

namespace nvllm::kernels {

// The kernel is instantiated for these tiles of M. With 24 or 56 rows it was no faster than with 32
// or 64.
inline constexpr std::array kSmallMTiles = {32, 40, 48, 64, 80, 96, 112, 128};

// With fewer rows kernels/gemm/sm80/gemv.cuh is as fast, or faster.
inline constexpr int kSmallMMinRows = 17, kSmallMMaxRows = kSmallMTiles.back();
inline constexpr int kSmallMMaxOutputTiles = 3;
inline constexpr int kSmallMMaxSplits = 8;

// Today the K-split is chosen together with tile M. A choice by the weight alone, which would make
// results independent of M, belongs into plan_small_m() and changes nothing else.
struct SmallMTiling {
  int tile_m = 0;    // rows of a block's tile, one of kSmallMTiles
  int tiles = 0;     // of 64 outputs each, of a block
  int k_splits = 1;  // parts of the inputs, one per block of a cluster
  int stages = 0;    // of the ring in shared memory

  auto operator<=>(const SmallMTiling&) const = default;
};

// How many blocks a GPU runs at once, one on a multiprocessor, by the size of their cluster; all 0 on
// a GPU that is no Hopper.
struct SmallMOccupancy {
  std::array<int, kSmallMMaxSplits + 1> blocks{};  // blocks[k_splits]
};

// Bytes of shared memory of a block.
int small_m_shared_bytes(const SmallMTiling& tiling);

// Nothing where another kernel is faster: too many rows, or a shape that does not fit or does not
// fill the GPU.
std::optional<SmallMTiling> plan_small_m(std::int64_t m, std::int64_t outputs, std::int64_t inputs,
                                         const SmallMOccupancy& gpu);

}  // namespace nvllm::kernels
