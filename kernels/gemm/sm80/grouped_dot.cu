// Grouped GEMMs without tensor cores, of any shape, type and alignment: one warp per output of a
// group, which processes the group's rows four at a time.
#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm80/grouped_params.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kRows = 4, kWarps = 8;

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
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const GroupedParams<T> p(grouped);
  const long long blocks = static_cast<long long>((p.outputs + kWarps - 1) / kWarps) * p.groups;
  launch_with_pdl("launching a grouped GEMM", grouped_dot_kernel<T>, dim3(blocks_for(blocks, 1)),
                  dim3(kWarps * 32), stream, p);
}

}  // namespace

void grouped_dot(const GroupedGemm& grouped, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (grouped.weight.format) {
    case WeightFormat::f32: return launch<float>(grouped, native);
    case WeightFormat::bf16: return launch<Bf16>(grouped, native);
    default: return launch<F16>(grouped, native);
  }
}

}  // namespace nvllm::kernels::cuda
