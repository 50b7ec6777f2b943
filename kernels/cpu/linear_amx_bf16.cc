// Blocks of bfloat16 in AMX tiles: a product of tiles takes 16 outputs, 16 rows and 32 inputs.
#include "kernels/cpu/formats_bf16.h"

namespace nvllm::kernels::cpu {
namespace {

// Of each thread that works with tiles: all eight are 16 rows of 64 bytes.
class TileConfiguration {
 public:
  TileConfiguration() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } layout;
    static_assert(sizeof(layout) == 64);
    _tile_loadconfig(&layout);
  }
  ~TileConfiguration() { _tile_release(); }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

// Two by two tiles of sums at a time (0 to 3), weights in 4 and 5, x in 6 and 7. The second-level cache
// feeds tiles only half as fast as they multiply, so a stretch of a panel of x must stay in the first level:
// 32 KiB of its 48.
struct InTiles {
  using Format = BlocksOfBf16;
  static constexpr int kTile = 16;  // rows of a tile, and dwords of a row
  static constexpr int kVectors = 2;
  static constexpr int kRows = kVectors * kTile;
  static constexpr int kOutputs = 128;
  static constexpr int kStepUnit = kTile;
  static constexpr int kSteps = 256;
  static constexpr int kGroup = 2 * kTile;
  // Rows of tiles do not lie a power of two apart, which would put them into few sets of the cache.
  static constexpr int kWeightStride = kSteps + kTile;

  static void multiply(const float* weights, const float* x, std::int64_t outputs, int vectors,
                       std::int64_t steps, bool first, float* sums) {
    const TileConfiguration configuration;
    for (std::int64_t o = 0; o < outputs; o += kGroup) {
      const auto group = vectors == 1 ? &by_one : &by_two;
      group(weights + o * kWeightStride, x, steps, first, sums + o * kRows);
    }
  }

 private:
  static constexpr int kWeightBytes = kWeightStride * 4, kRowBytes = kRows * 4;

  // Two tiles of outputs by one of rows.
  static void by_one(const float* weights, const float* x, std::int64_t steps, bool first,
                     float* sums) {
    asm volatile("" ::: "memory");  // tiles are loaded behind the compiler's back
    if (first) {
      _tile_zero(0);
      _tile_zero(2);
    } else {
      _tile_loadd(0, sums, kRowBytes);
      _tile_loadd(2, sums + kTile * kRows, kRowBytes);
    }
    for (std::int64_t step = 0; step < steps; step += kTile) {
      _tile_loadd(6, x + step * kRows, kRowBytes);
      _tile_loadd(4, weights + step, kWeightBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, weights + kTile * kWeightStride + step, kWeightBytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stored(0, sums, kRowBytes);
    _tile_stored(2, sums + kTile * kRows, kRowBytes);
  }

  // Two tiles of outputs by two of rows.
  static void by_two(const float* weights, const float* x, std::int64_t steps, bool first,
                     float* sums) {
    float* lower = sums + kTile * kRows;
    asm volatile("" ::: "memory");
    if (first) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, sums, kRowBytes);
      _tile_loadd(1, sums + kTile, kRowBytes);
      _tile_loadd(2, lower, kRowBytes);
      _tile_loadd(3, lower + kTile, kRowBytes);
    }
    for (std::int64_t step = 0; step < steps; step += kTile) {
      _tile_loadd(6, x + step * kRows, kRowBytes);
      _tile_loadd(4, weights + step, kWeightBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, x + step * kRows + kTile, kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, weights + kTile * kWeightStride + step, kWeightBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, kRowBytes);
    _tile_stored(1, sums + kTile, kRowBytes);
    _tile_stored(2, lower, kRowBytes);
    _tile_stored(3, lower + kTile, kRowBytes);
  }
};

}  // namespace

const LinearKernels& linear_kernels_amx_bf16() {
  return kKernels<DotOfBf16, InTiles>;
}

}  // namespace nvllm::kernels::cpu
