// Random values on the GPU. Launched without PDL: the result may be constants that the next kernel
// reads before its wait (kernels/common/sm80/launch.cuh).
#include "kernels/common/arguments.h"
#include "kernels/common/host_device.h"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/random_fill.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kVectors = 4;  // of a thread

struct Params {
  unsigned long long seed, first;  // the index of the first element
  long long whole_columns;
  float center, width;
};

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    random_fill_kernel(T* out, const Params p, const RowTiles tiles) {
  constexpr int kElements = Vector<T>::kElements;
  const TilePlace place = tile_place<kVectors>(tiles.tiles);
  if (place.row >= tiles.rows) return;
  const unsigned long long start = p.first + place.row * p.whole_columns;
  unsigned block = static_cast<unsigned>((start + place.vector * kElements) >> 32);
  RandomKeys keys(p.seed, block);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const long long vector = place.vector + v * blockDim.x;
    if (vector >= tiles.vectors) break;
    Floats<T> values;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const unsigned long long index = start + vector * kElements + i;
      if (const auto its = static_cast<unsigned>(index >> 32); its != block) {
        block = its;
        keys = RandomKeys(p.seed, block);
      }
      values.element[i] = __fmaf_rn(p.width, keys.unit(static_cast<unsigned>(index)), p.center);
    }
    store_of_row<kAligned>(out + place.row * tiles.columns, vector, tiles.columns, narrow(values));
  }
}

__global__ void __launch_bounds__(256)
    random_bytes_kernel(int* out, const Params p, long long columns, long long words) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += step) {
    const unsigned long long index = p.first + i / columns * p.whole_columns + i % columns;
    const RandomKeys keys(p.seed, index >> 32);
    out[i] = static_cast<int>(keys.bits(static_cast<unsigned>(index)) & kRandomBytes);
  }
}

}  // namespace

void random_fill(const RandomFill& args, Stream& stream) {
  const auto first = args.first_row * args.whole_columns + args.first_column;
  const Params p{args.seed, static_cast<unsigned long long>(first), args.whole_columns, args.center,
                 args.width};
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    constexpr int kElements = Vector<T>::kElements;
    const RowTiles tiles(args.out.shape[0], args.out.shape[1], kElements, kVectors);
    const bool aligned = tiles.columns % kElements == 0 && args.out.aligned(16);
    const auto kernel = aligned ? random_fill_kernel<T, true> : random_fill_kernel<T, false>;
    kernel<<<tiles.grid, tiles.block, 0, nvllm::cuda::native(stream)>>>(args.out.as<T>(), p, tiles);
    nvllm::cuda::check(cudaGetLastError(), "launching random_fill");
  });
}

void random_bytes(const RandomFill& args, Stream& stream) {
  const auto first = args.first_row * args.whole_columns + args.first_column;
  const Params p{args.seed, static_cast<unsigned long long>(first), args.whole_columns, 0, 0};
  random_bytes_kernel<<<1024, 256, 0, nvllm::cuda::native(stream)>>>(
      args.out.as<int>(), p, args.out.shape[1], args.out.elements());
  nvllm::cuda::check(cudaGetLastError(), "launching random_bytes");
}

}  // namespace nvllm::kernels::cuda
