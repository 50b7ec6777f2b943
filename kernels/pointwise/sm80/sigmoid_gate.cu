// Output gates of attention on the GPU, 16 bytes at a time. Memory-bound.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/sigmoid_gate.h"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    sigmoid_gate_kernel(T* x, const T* gate, const RowTiles tiles) {
  pdl_begin();
  const TilePlace place = tile_place<1>(tiles.tiles);
  if (place.row >= tiles.rows || place.vector >= tiles.vectors) return;
  T* const row = x + place.row * tiles.columns;
  Floats<T> values = widen(load_of_row<kAligned>(row, place.vector, tiles.columns));
  const Floats<T> gates =
      widen(load_of_row<kAligned>(gate + place.row * tiles.columns, place.vector, tiles.columns));
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    values.element[i] = quotient<T>(values.element[i], 1.0f + exponential<T>(-gates.element[i]));
  }
  store_of_row<kAligned>(row, place.vector, tiles.columns, narrow(values));
}

}  // namespace

void sigmoid_gate(const SigmoidGate& args, Stream& stream) {
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    constexpr int kElements = Vector<T>::kElements;
    const RowTiles tiles(args.x.shape[0], args.x.shape[1], kElements, 1);
    const bool aligned =
        tiles.columns % kElements == 0 && args.x.aligned(16) && args.gate.aligned(16);
    const auto kernel = aligned ? sigmoid_gate_kernel<T, true> : sigmoid_gate_kernel<T, false>;
    launch_with_pdl("launching sigmoid_gate", kernel, tiles.grid, tiles.block,
                    nvllm::cuda::native(stream), args.x.as<T>(), args.gate.as<const T>(), tiles);
  });
}

}  // namespace nvllm::kernels::cuda
