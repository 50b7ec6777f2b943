// Attention of one row and head in float32 by one warp, whose lanes split the head, with an online
// softmax. The float32 kernel serves as a reference; the 16-bit types use tensor cores
// (mma_rows.cuh).
#pragma once

#include "kernels/attention/sm80/attention_params.cuh"

namespace nvllm::kernels::cuda::plain {

inline constexpr int kWarps = 4;
// Default for the max. elements of a head per lane.
inline constexpr int kUsualElements = kMaxCudaHeadDim / 32;

template <int kElements, typename Kv>
__device__ __forceinline__ void load_head(float (&element)[kElements], const Kv* head,
                                          int head_dim) {
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x);
    element[i] = at < head_dim ? widen(head[at]) : 0.0f;
  }
}

// The state of a row. Lane l has elements l, l + 32 ... of the head.
template <int kElements = kUsualElements>
struct Row {
  float q[kElements];
  float out[kElements] = {};  // not yet divided by the sum
  float row_max = -INFINITY;
  float sum = 0;  // of this lane's tokens
};

template <int kElements = kUsualElements, typename T>
__device__ __forceinline__ Row<kElements> start_row(const AttentionRows<T>& part, int packed_row) {
  Row<kElements> row;
  load_head(row.q, part.query(packed_row), part.p.head_dim);
  return row;
}

// Adds the tokens that the row attends to.
template <typename Part, int kElements>
__device__ __forceinline__ void add_tokens(const Part& part, int packed_row,
                                           Row<kElements>& state) {
  const int tokens = max(0, part.visible(packed_row));
  auto& [q, out, row_max, sum] = state;
  const float scale = part.p.score_scale(part.kv_head);
  // Processes 32 tokens at a time; lane t has the score of token t.
  const int begin = Part::kWindowed ? part.first_seen(packed_row) : 0;
  for (int first = begin; first < tokens; first += 32) {
    const int count = min(32, tokens - first);
    float score = -INFINITY;
    for (int t = 0; t < count; ++t) {
      float k[kElements], dot = 0;
      load_head(k, part.p.keys + part.kv_offset_at(first + t), part.p.head_dim);
#pragma unroll
      for (int i = 0; i < kElements; ++i) dot += q[i] * k[i];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) dot += __shfl_xor_sync(~0u, dot, lanes);
      if (static_cast<int>(threadIdx.x) == t) score = dot * scale * kLog2E;
    }
    float new_max = fmaxf(row_max, score);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, lanes));
    }
    const float weight = power_of_2(score - reference_of(new_max));
    const float rescale = power_of_2(row_max - reference_of(new_max));
    row_max = new_max;
    sum = sum * rescale + weight;  // of this lane's tokens
#pragma unroll
    for (int i = 0; i < kElements; ++i) out[i] *= rescale;
    for (int t = 0; t < count; ++t) {
      float v[kElements];
      load_head(v, part.p.values + part.kv_offset_at(first + t), part.p.head_dim);
      const float factor = __shfl_sync(~0u, weight, t);
#pragma unroll
      for (int i = 0; i < kElements; ++i) out[i] += factor * v[i];
    }
  }
}

template <typename T, int kElements>
__device__ __forceinline__ void write_row(const AttentionRows<T>& part, int row,
                                          const Row<kElements>& state) {
  const AttentionParams<T>& p = part.p;
  const float value_scale = p.value_scale(part.kv_head);
  float row_max = state.row_max, sum = state.sum;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  p.add_sink(part.index(row), row_max, sum);

  float* to = p.out + part.index(row) * p.head_dim;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x);
    if (at < p.head_dim) to[at] = sum == 0 ? 0.0f : state.out[i] * value_scale / sum;
  }
  if (p.lse != nullptr && threadIdx.x == 0) p.lse[part.index(row)] = log_sum_exp(row_max, sum);
}

}  // namespace nvllm::kernels::cuda::plain
