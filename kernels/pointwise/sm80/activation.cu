// Gated activations on the GPU. Memory-bound.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kActivationVectors = 2;  // per thread, of gate values and of up values

template <typename T>
__device__ __forceinline__ Vector<T> clamped_gated(const Vector<T>& gates, const Vector<T>& ups,
                                                   float limit) {
  Floats<T> values = widen(gates);
  const Floats<T> factors = widen(ups);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    values.element[i] = clamped_swiglu<T>(values.element[i], factors.element[i], limit);
  }
  return narrow(values);
}

template <Activation kActivation, typename T>
__device__ __forceinline__ Vector<T> gated(const Vector<T>& gates, const Vector<T>& ups,
                                           float limit) {
  if constexpr (kActivation == Activation::clamped_swiglu) return clamped_gated(gates, ups, limit);
  return activate_gated<kActivation>(gates, ups);
}

template <typename T, Activation kActivation, bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    gated_activation_kernel(T* out, const T* x, const RowTiles tiles, float limit,
                            bool trigger_early) {
  pdl_begin(trigger_early);
  const TilePlace place = tile_place<kActivationVectors>(tiles.tiles);
  if (place.row >= tiles.rows) return;
  const T* gate_row = x + place.row * 2 * tiles.columns;
  const T* up_row = gate_row + tiles.columns;
  Vector<T> gates[kActivationVectors], ups[kActivationVectors];
#pragma unroll
  for (int v = 0; v < kActivationVectors; ++v) {
    const long long vector = place.vector + v * blockDim.x;
    if (vector >= tiles.vectors) continue;
    gates[v] = load_of_row<kAligned>(gate_row, vector, tiles.columns);
    ups[v] = load_of_row<kAligned>(up_row, vector, tiles.columns);
  }
#pragma unroll
  for (int v = 0; v < kActivationVectors; ++v) {
    const long long vector = place.vector + v * blockDim.x;
    if (vector >= tiles.vectors) continue;
    store_of_row<kAligned>(out + place.row * tiles.columns, vector, tiles.columns,
                           gated<kActivation>(gates[v], ups[v], limit));
  }
}

template <Activation kActivation>
void launch(const GatedActivation& args, Stream& stream, bool trigger_early) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    constexpr int kElements = Vector<T>::kElements;
    const RowTiles tiles(args.out.shape[0], args.out.shape[1], kElements, kActivationVectors);
    const bool aligned =
        tiles.columns % kElements == 0 && args.out.aligned(16) && args.x.aligned(16);
    const auto kernel = aligned ? gated_activation_kernel<T, kActivation, true>
                                : gated_activation_kernel<T, kActivation, false>;
    launch_with_pdl("launching gated_activation", kernel, tiles.grid, tiles.block,
                    nvllm::cuda::native(stream), args.out.as<T>(), args.x.as<T>(), tiles,
                    args.limit, trigger_early);
  });
}

}  // namespace

void gated_activation(const GatedActivation& args, Stream& stream, bool trigger_early) {
  switch (args.activation) {
    case Activation::silu: return launch<Activation::silu>(args, stream, trigger_early);
    case Activation::gelu: return launch<Activation::gelu>(args, stream, trigger_early);
    case Activation::gelu_tanh: return launch<Activation::gelu_tanh>(args, stream, trigger_early);
    case Activation::clamped_swiglu:
      return launch<Activation::clamped_swiglu>(args, stream, trigger_early);
  }
}

}  // namespace nvllm::kernels::cuda
