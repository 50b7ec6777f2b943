// Capped logits on the GPU, 16 bytes at a time.
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/soft_cap.h"

namespace nvllm::kernels::cuda {
namespace {

template <bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    soft_cap_kernel(float* x, long long stride, float cap, const RowTiles tiles) {
  pdl_begin();
  const TilePlace place = tile_place<1>(tiles.tiles);
  if (place.row >= tiles.rows || place.vector >= tiles.vectors) return;
  float* const row = x + place.row * stride;
  Floats<float> values = widen(load_of_row<kAligned>(row, place.vector, tiles.columns));
#pragma unroll
  for (float& value : values.element) value = cap * tanhf(__fdiv_rn(value, cap));
  store_of_row<kAligned>(row, place.vector, tiles.columns, narrow(values));
}

}  // namespace

void soft_cap(const SoftCap& args, Stream& stream) {
  constexpr int kElements = Vector<float>::kElements;
  const RowTiles tiles(args.x.shape[0], args.x.shape[1], kElements, 1);
  const bool aligned = tiles.columns % kElements == 0 && args.x.aligned(16) &&
                       (tiles.rows == 1 || args.x.stride[0] % kElements == 0);
  const auto kernel = aligned ? soft_cap_kernel<true> : soft_cap_kernel<false>;
  const long long stride = args.x.stride[0];
  launch_with_pdl("launching soft_cap", kernel, tiles.grid, tiles.block,
                  nvllm::cuda::native(stream), args.x.as<float>(), stride, args.cap, tiles);
}

}  // namespace nvllm::kernels::cuda
