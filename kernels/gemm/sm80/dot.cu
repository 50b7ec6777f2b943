#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm80/gemm_params.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kRows = 4;   // per warp
constexpr int kWarps = 8;  // per block, one output each

// Vector number `vector` of a row of `inputs`.
template <bool kAligned, typename T>
__device__ __forceinline__ Vector<T> load_of(const T* row, int vector, int inputs) {
  constexpr int kElements = Vector<T>::kElements;
  if constexpr (kAligned) return load_vector(row + vector * kElements);
  return load_elements(row + vector * kElements, inputs - vector * kElements);
}

template <typename T>
__device__ __forceinline__ float multiply_add(const Floats<T>& a, const Vector<T>& b, float sum) {
  const Floats<T> factors = widen(b);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) sum += a.element[i] * factors.element[i];
  return sum;
}

// kAligned: all rows start at multiples of 16 bytes and consist of whole vectors.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kWarps * 32) dot_kernel(const GemmParams<T> p) {
  const int lane = threadIdx.x % 32;
  const int output = blockIdx.x * kWarps + threadIdx.x / 32;
  if (output >= p.outputs) return;
  const T* weight = p.weight + static_cast<long long>(output) * p.inputs;
  const int vectors = (p.inputs + Vector<T>::kElements - 1) / Vector<T>::kElements;
  for (int first = blockIdx.y * kRows; first < p.rows; first += gridDim.y * kRows) {
    float sums[kRows] = {};
#pragma unroll 4
    for (int v = lane; v < vectors; v += 32) {
      const Floats<T> w = widen(load_of<kAligned>(weight, v, p.inputs));
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r >= p.rows) continue;
        const T* x = p.x + (first + r) * p.x_stride;
        sums[r] = multiply_add(w, load_of<kAligned>(x, v, p.inputs), sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], lanes);
      }
      if (lane > 0 || first + r >= p.rows) continue;
      store_output(p, first + r, output, sums[r], residual_of(p, first + r, output));
    }
  }
}

template <typename T>
void launch(const GemmCall& call, cudaStream_t stream) {
  const GemmParams<T> p(call);
  constexpr int kElements = Vector<T>::kElements;
  const bool aligned = p.inputs % kElements == 0 && call.weight.values.aligned(16) &&
                       x_of(call).aligned(16) && (p.rows == 1 || p.x_stride % kElements == 0);
  const dim3 grid((p.outputs + kWarps - 1) / kWarps, std::min((p.rows + kRows - 1) / kRows, 4096));
  const auto kernel = aligned ? dot_kernel<T, true> : dot_kernel<T, false>;
  kernel<<<grid, kWarps * 32, 0, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching a GEMM");
}

}  // namespace

void dot(const GemmCall& call, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (call.weight.format) {
    case WeightFormat::f32: return launch<float>(call, native);
    case WeightFormat::bf16: return launch<Bf16>(call, native);
    default: return launch<F16>(call, native);
  }
}

}  // namespace nvllm::kernels::cuda
