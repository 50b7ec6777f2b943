// GEMMs and grouped GEMMs without tensor cores, of any shape, type and alignment: one warp per
// output, which processes rows four at a time.
#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm80/gemm_params.cuh"
#include "kernels/gemm/sm80/grouped_params.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kRows = 4;   // per warp, at a time
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

// A warp processes the rows of its output's group.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32) grouped_dot_kernel(const GroupedParams<T> p) {
  pdl_begin();
  const int lane = threadIdx.x % 32;
  const int blocks = (p.outputs + kWarps - 1) / kWarps;  // per group
  const int group = static_cast<int>(blockIdx.x) / blocks;
  const int output = static_cast<int>(blockIdx.x) % blocks * kWarps + threadIdx.x / 32;
  if (output >= p.outputs) return;
  const long long of_all = static_cast<long long>(group) * p.outputs + output;
  const T* const weight = p.weight + of_all * p.inputs;
  const float bias = p.bias == nullptr ? 0 : widen(p.bias[of_all]);
  const int end = p.start[group + 1];
  for (int first = p.start[group]; first < end; first += kRows) {
    float sums[kRows] = {};
    const T* x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = p.x + p.source_of(min(first + r, end - 1)) * p.inputs;
    for (int i = lane; i < p.inputs; i += 32) {
      const float w = widen(weight[i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = fmaf(w, widen(x[r][i]), sums[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) sums[r] += __shfl_xor_sync(~0u, sums[r], lanes);
      if (lane > 0 || first + r >= end) continue;
      p.out[static_cast<long long>(first + r) * p.columns + output] = narrow<T>(sums[r] + bias);
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

template <typename T>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const GroupedParams<T> p(grouped);
  const long long blocks = static_cast<long long>((p.outputs + kWarps - 1) / kWarps) * p.groups;
  launch_with_pdl("launching a grouped GEMM", grouped_dot_kernel<T>, dim3(blocks_for(blocks, 1)),
                  dim3(kWarps * 32), stream, p);
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

void grouped_dot(const GroupedGemm& grouped, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (grouped.weight.format) {
    case WeightFormat::f32: return launch<float>(grouped, native);
    case WeightFormat::bf16: return launch<Bf16>(grouped, native);
    default: return launch<F16>(grouped, native);
  }
}

}  // namespace nvllm::kernels::cuda
