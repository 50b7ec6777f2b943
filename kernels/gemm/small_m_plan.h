// How a product of some rows is divided among the blocks of the kernel for it (kernels/gemm/sm90/skinny.cuh), and whether
// it is worth it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace nvllm::kernels {

// For how many rows there is a kernel. With room for 24 or 56 it was no faster than with 32 or 64.
inline constexpr std::array kSkinnyRooms = {32, 40, 48, 64, 80, 96, 112, 128};

// With fewer rows kernels/gemm/sm80/matvec.h is as fast, or faster.
inline constexpr int kSkinnyMinRows = 17, kSkinnyMaxRows = kSkinnyRooms.back();
inline constexpr int kSkinnyMaxTiles = 3;
inline constexpr int kSkinnyMaxSplits = 8;

struct SkinnyPlan {
  int rows;    // that blocks have room for, of kSkinnyRooms
  int tiles;   // of 64 outputs, of a block
  int splits;  // of the inputs, one per block of a cluster
  int stages;  // of the ring

  bool operator==(const SkinnyPlan&) const = default;
};

// What a GPU has room for.
struct SkinnyMachine {
  // places[splits]: blocks in clusters of so many that run at once, one on a multiprocessor.
  std::array<int, kSkinnyMaxSplits + 1> places{};
};

// Bytes of shared memory of a block.
int skinny_shared_bytes(const SkinnyPlan& plan);

// Nothing where another way is faster: too many rows, or a shape that does not fit or does not fill the GPU.
std::optional<SkinnyPlan> plan_skinny(std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                                      const SkinnyMachine& machine);

}  // namespace nvllm::kernels
