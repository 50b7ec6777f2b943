// Weighted sums of experts' rows on the GPU, 16 bytes at a time. Memory-bound.
#include <type_traits>

#include "kernels/common/arguments.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/row_tiles.cuh"
#include "kernels/moe/backends.h"
#include "kernels/moe/moe.h"

namespace nvllm::kernels::cuda {
namespace {

// Out: T, or float if there is no residual.
template <typename T, typename Out>
struct Params {
  Out* out;
  const T* experts;
  const T* residual;  // nullptr: none
  const float* weights;
  const int* entries;
  const int* own_start;  // nullptr: all entries are own
  int own_experts;
  const T* shared;  // nullptr: none
  const float* shared_gate;
  int k;
};

template <typename T>
__device__ __forceinline__ void add_scaled(Floats<T>& sum, float factor, const Vector<T>& vector) {
  const Floats<T> part = widen(vector);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    sum.element[i] = fmaf(factor, part.element[i], sum.element[i]);
  }
}

constexpr int kAtOnce = 8;  // rows of experts

// The vector of a row, starting at an element of an expert's output.
template <bool kAligned, typename T>
__device__ __forceinline__ void store_floats(float* row, long long vector, long long columns,
                                             const Floats<T>& sum) {
  constexpr int kElements = Vector<T>::kElements, kParts = kElements / Vector<float>::kElements;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (!kAligned && (vector * kParts + part) * Vector<float>::kElements >= columns) return;
    Floats<float> some;
#pragma unroll
    for (int i = 0; i < Vector<float>::kElements; ++i) {
      some.element[i] = sum.element[part * Vector<float>::kElements + i];
    }
    store_of_row<kAligned>(row, vector * kParts + part, columns, narrow(some));
  }
}

template <typename T, typename Out, bool kAligned>
__global__ void __launch_bounds__(kTileBlockThreads)
    combine_experts_kernel(const Params<T, Out> p, const RowTiles tiles) {
  pdl_begin();
  const TilePlace place = tile_place<1>(tiles.tiles);
  if (place.row >= tiles.rows || place.vector >= tiles.vectors) return;
  const float* const weights = p.weights + place.row * p.k;
  const int* const entries = p.entries + place.row * p.k;
  const int own_begin = p.own_start == nullptr ? 0 : p.own_start[0];
  const int own_end = p.own_start == nullptr ? 0x7fffffff : p.own_start[p.own_experts];
  Vector<T> residual{};
  if (p.residual != nullptr) {
    residual =
        load_of_row<kAligned>(p.residual + place.row * tiles.columns, place.vector, tiles.columns);
  }
  Floats<T> sum{};
  for (int first = 0; first < p.k; first += kAtOnce) {
    // All loads are issued first, without branches in between, which would serialize them. Entries
    // that are not own read the first row, and are not added.
    int at[kAtOnce];
    float factors[kAtOnce];
    Vector<T> parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = min(first + i, p.k - 1);
      at[i] = entries[j], factors[i] = weights[j];
    }
    bool own[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      own[i] = first + i < p.k && at[i] >= own_begin && at[i] < own_end;
      const T* const row = p.experts + (own[i] ? static_cast<long long>(at[i]) : 0) * tiles.columns;
      parts[i] = load_of_row<kAligned>(row, place.vector, tiles.columns);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (own[i]) add_scaled(sum, factors[i], parts[i]);
    }
  }
  if (p.shared != nullptr) {
    const float gate = 1.0f / (1.0f + expf(-p.shared_gate[place.row]));
    add_scaled(
        sum, gate,
        load_of_row<kAligned>(p.shared + place.row * tiles.columns, place.vector, tiles.columns));
  }
  if constexpr (!std::is_same_v<T, Out>) {
    return store_floats<kAligned, T>(p.out + place.row * tiles.columns, place.vector, tiles.columns,
                                     sum);
  } else {
    Vector<T> result = narrow(sum);
    if (p.residual != nullptr) result = add(residual, result);
    store_of_row<kAligned>(p.out + place.row * tiles.columns, place.vector, tiles.columns, result);
  }
}

template <typename T, typename Out>
void launch(const CombineExperts& args, Stream& stream) {
  constexpr int kElements = Vector<T>::kElements;
  const RowTiles tiles(args.out.shape[0], args.out.shape[1], kElements, 1);
  const bool aligned = tiles.columns % kElements == 0 && args.out.aligned(16) &&
                       args.experts.aligned(16) && args.residual.aligned(16) &&
                       args.shared.aligned(16);
  const auto kernel =
      aligned ? combine_experts_kernel<T, Out, true> : combine_experts_kernel<T, Out, false>;
  const Params<T, Out> params{.out = args.out.as<Out>(),
                              .experts = args.experts.as<const T>(),
                              .residual = args.residual.as<const T>(),
                              .weights = args.weights.as<const float>(),
                              .entries = args.entries.as<const int>(),
                              .own_start = args.own_start.as<const int>(),
                              .own_experts = static_cast<int>(args.own_start.elements()) - 1,
                              .shared = args.shared.as<const T>(),
                              .shared_gate = args.shared_gate.as<const float>(),
                              .k = static_cast<int>(args.weights.shape[1])};
  launch_with_pdl("launching combine_experts", kernel, tiles.grid, tiles.block,
                  nvllm::cuda::native(stream), params, tiles);
}

}  // namespace

void combine_experts(const CombineExperts& args, Stream& stream) {
  with_element_type(args.experts.dtype, [&]<typename T>(T) {
    args.out.dtype == args.experts.dtype ? launch<T, T>(args, stream)
                                         : launch<T, float>(args, stream);
  });
}

}  // namespace nvllm::kernels::cuda
