// Element-wise operations on the GPU: gated activations, output gates of attention, scaled sums and
// capped logits, 16 bytes at a time. Memory-bound.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/elementwise.h"
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
void launch_gated_activation(const GatedActivation& args, Stream& stream, bool trigger_early) {
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

// Rows of the tensors are `stride` elements apart.
template <typename T>
struct ScaledSumParams {
  T* out;
  const T* a;
  const T* b;  // nullptr: zeros
  long long out_stride, a_stride, b_stride;
  float scale;
  const T* factor;  // nullptr: 1
};

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    scaled_sum_kernel(const ScaledSumParams<T> p, const RowTiles tiles) {
  pdl_begin();
  const TilePlace place = tile_place<1>(tiles.tiles);
  if (place.row >= tiles.rows || place.vector >= tiles.vectors) return;
  const auto load = [&](const T* from, long long stride) {
    return widen(load_of_row<kAligned>(from + place.row * stride, place.vector, tiles.columns));
  };
  const float by = p.factor == nullptr ? p.scale : __fmul_rn(p.scale, widen(*p.factor));
  Floats<T> sum = load(p.a, p.a_stride);
  if (p.b != nullptr) {
    const Floats<T> b = load(p.b, p.b_stride);
#pragma unroll
    for (int i = 0; i < Vector<T>::kElements; ++i) {
      sum.element[i] = __fadd_rn(sum.element[i], b.element[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) sum.element[i] = __fmul_rn(sum.element[i], by);
  store_of_row<kAligned>(p.out + place.row * p.out_stride, place.vector, tiles.columns,
                         narrow(sum));
}

// Whether all rows consist of whole vectors at multiples of 16 bytes.
bool in_vectors(const ScaledSum& args, int elements) {
  bool fits = args.out.shape[1] % elements == 0;
  for (const TensorView* tensor : {&args.out, &args.a, &args.b}) {
    if (tensor->data == nullptr) continue;
    const bool together = tensor->shape[0] == 1 || tensor->stride[0] % elements == 0;
    fits = fits && tensor->aligned(16) && together;
  }
  return fits;
}

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

void gated_activation(const GatedActivation& args, Stream& stream, bool trigger_early) {
  switch (args.activation) {
    case Activation::silu:
      return launch_gated_activation<Activation::silu>(args, stream, trigger_early);
    case Activation::gelu:
      return launch_gated_activation<Activation::gelu>(args, stream, trigger_early);
    case Activation::gelu_tanh:
      return launch_gated_activation<Activation::gelu_tanh>(args, stream, trigger_early);
    case Activation::clamped_swiglu:
      return launch_gated_activation<Activation::clamped_swiglu>(args, stream, trigger_early);
  }
}

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

void scaled_sum(const ScaledSum& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    constexpr int kElements = Vector<T>::kElements;
    const RowTiles tiles(args.out.shape[0], args.out.shape[1], kElements, 1);
    const auto kernel =
        in_vectors(args, kElements) ? scaled_sum_kernel<T, true> : scaled_sum_kernel<T, false>;
    const ScaledSumParams<T> params{.out = args.out.as<T>(),
                                    .a = args.a.as<const T>(),
                                    .b = args.b.as<const T>(),
                                    .out_stride = args.out.stride[0],
                                    .a_stride = args.a.stride[0],
                                    .b_stride = args.b.stride[0],
                                    .scale = args.scale,
                                    .factor = args.factor.as<const T>()};
    launch_with_pdl("launching scaled_sum", kernel, tiles.grid, tiles.block,
                    nvllm::cuda::native(stream), params, tiles);
  });
}

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
