// Attention on the GPU: the choice of a kernel, and the one for float32: a warp per row and head, its lanes
// side by side along the head. float32 is for checking; the 16-bit types have tensor cores
// (attention_prefill.cu, attention_decode.cu).
#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kElements = kMaxHeadDim / 32;  // of a head, per lane at most

__device__ __forceinline__ void load_head(float (&element)[kElements], const float* head,
                                          int head_dim) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x);
    element[i] = at < head_dim ? head[at] : 0.0f;
  }
}

__global__ void __launch_bounds__(kWarps * 32)
    attention_float_kernel(const AttentionParams<float> p) {
  const AttentionPart<float> part(p, blockIdx.z, blockIdx.y);
  const int row = blockIdx.x * kWarps + threadIdx.y;
  if (row >= part.packed_rows) return;
  const int tokens = max(0, part.visible(row));

  float q[kElements], out[kElements] = {};
  load_head(q, part.query(row), p.head_dim);
  float highest = -INFINITY, sum = 0;
  // 32 tokens at a time: lane t has the score of the t-th.
  for (int first = 0; first < tokens; first += 32) {
    const int count = min(32, tokens - first);
    float score = -INFINITY;
    for (int t = 0; t < count; ++t) {
      float k[kElements], dot = 0;
      load_head(k, p.keys + part.place(first + t), p.head_dim);
#pragma unroll
      for (int i = 0; i < kElements; ++i) dot += q[i] * k[i];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) dot += __shfl_xor_sync(~0u, dot, lanes);
      if (static_cast<int>(threadIdx.x) == t) score = dot * p.scale * kLog2E;
    }
    float higher = fmaxf(highest, score);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      higher = fmaxf(higher, __shfl_xor_sync(~0u, higher, lanes));
    }
    const float weight = power_of_2(score - reference_of(higher));
    const float fade = power_of_2(highest - reference_of(higher));
    highest = higher;
    sum = sum * fade + weight;  // of this lane's tokens
#pragma unroll
    for (int i = 0; i < kElements; ++i) out[i] *= fade;
    for (int t = 0; t < count; ++t) {
      float v[kElements];
      load_head(v, p.values + part.place(first + t), p.head_dim);
      const float factor = __shfl_sync(~0u, weight, t);
#pragma unroll
      for (int i = 0; i < kElements; ++i) out[i] += factor * v[i];
    }
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);

  float* to = p.out + part.index(row) * p.head_dim;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x);
    if (at < p.head_dim) to[at] = sum == 0 ? 0.0f : out[i] / sum;
  }
  if (p.lse != nullptr && threadIdx.x == 0) p.lse[part.index(row)] = log_sum_exp(highest, sum);
}

void attention_float(const Attention& args, cudaStream_t stream) {
  const AttentionParams<float> p(args);
  const long long rows = args.max_query_rows * p.most_group_heads();
  const dim3 blocks(static_cast<unsigned>((rows + kWarps - 1) / kWarps), p.kv_heads(),
                    static_cast<unsigned>(args.kv_length.shape[0]));
  attention_float_kernel<<<blocks, dim3(32, kWarps), 0, stream>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching attention");
}

// Up to so many packed rows are for the kernel that goes through the tokens once per 16 rows, with several
// warps; beyond, the one that goes through them once per 64 rows is faster.
constexpr long long kDecodeRows = 32;

template <typename T>
void attention_on_tensor_cores(const Attention& args, cudaStream_t stream) {
  if (args.max_query_rows * std::min(args.group, args.q.shape[1]) <= kDecodeRows) {
    attention_decode<T>(args, stream);
  } else if (!attention_prefill_sm90<T>(args, stream)) {
    attention_prefill<T>(args, stream);
  }
}

}  // namespace

void attention(const Attention& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (args.q.dtype) {
    case DType::f32: return attention_float(args, native);
    case DType::bf16: return attention_on_tensor_cores<Bf16>(args, native);
    default: return attention_on_tensor_cores<F16>(args, native);
  }
}

}  // namespace nvllm::kernels::cuda
