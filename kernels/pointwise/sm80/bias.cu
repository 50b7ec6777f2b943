// Bias on the GPU.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/sm80/bias.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kVectors = 4;  // of a thread, all on their way together

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    add_bias_kernel(T* x, const T* bias, const RowTiles tiles) {
  begin_after_previous_kernel();
  const TilePlace place = tile_place<kVectors>(tiles.tiles);
  if (place.row >= tiles.rows) return;
  T* row = x + place.row * tiles.columns;
  Vector<T> values[kVectors], addends[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const long long vector = place.vector + v * blockDim.x;
    if (vector >= tiles.vectors) continue;
    values[v] = load_of_row<kAligned>(row, vector, tiles.columns);
    addends[v] = load_of_row<kAligned>(bias, vector, tiles.columns);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const long long vector = place.vector + v * blockDim.x;
    if (vector >= tiles.vectors) continue;
    store_of_row<kAligned>(row, vector, tiles.columns, add(values[v], addends[v]));
  }
}

}  // namespace

void add_bias(const AddBias& args, Stream& stream) {
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    constexpr int kElements = Vector<T>::kElements;
    const RowTiles tiles(args.x.shape[0], args.x.shape[1], kElements, kVectors);
    const bool aligned =
        tiles.columns % kElements == 0 && args.x.aligned(16) && args.bias.aligned(16);
    const auto kernel = aligned ? add_bias_kernel<T, true> : add_bias_kernel<T, false>;
    launch_early("launching add_bias", kernel, tiles.grid, tiles.block, nvllm::cuda::native(stream),
                 args.x.as<T>(), args.bias.as<T>(), tiles);
  });
}

}  // namespace nvllm::kernels::cuda
