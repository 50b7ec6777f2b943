// Scaled sums of two tensors on the GPU, 16 bytes at a time. Memory-bound.
#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/scaled_sum.h"

namespace nvllm::kernels::cuda {
namespace {

// Rows of the tensors are `stride` elements apart.
template <typename T>
struct Params {
  T* out;
  const T* a;
  const T* b;  // nullptr: zeros
  long long out_stride, a_stride, b_stride;
  float scale;
  const T* factor;  // nullptr: 1
};

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    scaled_sum_kernel(const Params<T> p, const RowTiles tiles) {
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

}  // namespace

void scaled_sum(const ScaledSum& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    constexpr int kElements = Vector<T>::kElements;
    const RowTiles tiles(args.out.shape[0], args.out.shape[1], kElements, 1);
    const auto kernel =
        in_vectors(args, kElements) ? scaled_sum_kernel<T, true> : scaled_sum_kernel<T, false>;
    const Params<T> params{.out = args.out.as<T>(),
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

}  // namespace nvllm::kernels::cuda
