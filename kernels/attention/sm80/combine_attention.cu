// Combines partial attention results on the GPU: one warp per head of a row, 4 elements per lane at
// a time. The kernel is memory-bound: every part is read once and the result is written once, so
// that dispatching element types at run time costs nothing. Shapes are those of
// kernels::CombineAttention.
#include "device/cuda/stream.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/backends.h"
#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kWarps = 8;

struct Params {
  void* out;
  float* lse;  // nullptr: not needed
  const void* part[kMaxAttentionParts];
  const float* part_lse[kMaxAttentionParts];
  DType out_type, part_type[kMaxAttentionParts];
  int count;
  int head_dim;
  long long heads;  // of all rows
};

template <typename T>
__device__ __forceinline__ float4 load_4(const void* data, long long at) {
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const T*>(data) + at);
  const auto element = [](unsigned word) { return widen(T{static_cast<unsigned short>(word)}); };
  return make_float4(element(bits.x), element(bits.x >> 16), element(bits.y),
                     element(bits.y >> 16));
}

__device__ __forceinline__ float4 load_4(const void* data, DType type, long long at) {
  switch (type) {
    case DType::f32: return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + at);
    case DType::bf16: return load_4<Bf16>(data, at);
    default: return load_4<F16>(data, at);
  }
}

template <typename T>
__device__ __forceinline__ void store_4(void* data, long long at, float4 value) {
  const auto pair = [](float low, float high) {
    return narrow<T>(low).bits | static_cast<unsigned>(narrow<T>(high).bits) << 16;
  };
  *reinterpret_cast<uint2*>(static_cast<T*>(data) + at) =
      make_uint2(pair(value.x, value.y), pair(value.z, value.w));
}

__device__ __forceinline__ void store_4(void* data, DType type, long long at, float4 value) {
  switch (type) {
    case DType::f32: *reinterpret_cast<float4*>(static_cast<float*>(data) + at) = value; return;
    case DType::bf16: return store_4<Bf16>(data, at, value);
    default: return store_4<F16>(data, at, value);
  }
}

__global__ void __launch_bounds__(kWarps * 32) combine_kernel(const Params p) {
  const long long head = static_cast<long long>(blockIdx.x) * kWarps + threadIdx.y;
  if (head >= p.heads) return;
  float weight[kMaxAttentionParts], row_max = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxAttentionParts; ++i) {
    weight[i] = i < p.count ? p.part_lse[i][head] : -INFINITY;
    row_max = fmaxf(row_max, weight[i]);
  }
  const float reference = row_max == -INFINITY ? 0.0f : row_max;
#pragma unroll
  for (int i = 0; i < kMaxAttentionParts; ++i) {
    weight[i] = expf(weight[i] - reference);
    sum += weight[i];
  }
  const float factor = sum == 0 ? 0.0f : 1 / sum;
  for (int d = 4 * static_cast<int>(threadIdx.x); d < p.head_dim; d += 4 * 32) {
    const long long at = head * p.head_dim + d;
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kMaxAttentionParts; ++i) {
      if (i >= p.count || weight[i] == 0) continue;
      const float4 part = load_4(p.part[i], p.part_type[i], at);
      value.x += weight[i] * part.x, value.y += weight[i] * part.y;
      value.z += weight[i] * part.z, value.w += weight[i] * part.w;
    }
    value.x *= factor, value.y *= factor, value.z *= factor, value.w *= factor;
    store_4(p.out, p.out_type, at, value);
  }
  __syncwarp();  // lse may be that of a part, which all lanes have read by now
  if (p.lse != nullptr && threadIdx.x == 0) p.lse[head] = reference + logf(sum);
}

}  // namespace

void combine_attention(const CombineAttention& args, Stream& stream) {
  Params p{};
  p.out = args.out.data;
  p.out_type = args.out.dtype;
  p.lse = args.lse.as<float>();
  p.count = args.count;
  p.heads = args.out.shape[0] * args.out.shape[1];
  p.head_dim = static_cast<int>(args.out.shape[2]);
  for (int i = 0; i < args.count; ++i) {
    p.part[i] = args.parts[i].out.data;
    p.part_type[i] = args.parts[i].out.dtype;
    p.part_lse[i] = args.parts[i].lse.as<float>();
  }
  const auto blocks = static_cast<unsigned>((p.heads + kWarps - 1) / kWarps);
  combine_kernel<<<blocks, dim3(32, kWarps), 0, nvllm::cuda::native(stream)>>>(p);
  nvllm::cuda::check(cudaGetLastError(), "launching combine_attention");
}

}  // namespace nvllm::kernels::cuda
