// Shared by the kernels for the experts of one row: their operands, the selection of experts, and
// the start and the end of the computation.
#pragma once

#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm80/grouped_params.cuh"
#include "kernels/moe/moe.h"
#include "kernels/moe/sm80/top_k_experts.cuh"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::kernels::cuda::single_token {

inline constexpr int kTile = 16;       // outputs that a warp computes at once
inline constexpr int kMaxOneRow = 16;  // experts of a row

template <typename T>
struct Weights {
  const char* values;
  const unsigned* scales;
  const T* bias;  // nullptr: none
  int row_bytes, row_scales;

  explicit Weights(const GemmWeight& weight)
      : values(weight.values.as<const char>()),
        scales(weight.quantized.scales.as<const unsigned>()),
        bias(weight.bias.as<const T>()),
        row_bytes(static_cast<int>(weight.inputs() * 2)),
        row_scales(0) {
    if (!is_quantized(weight.format)) return;
    const QuantizedShape shape = weight.quantized_shape();
    row_bytes = static_cast<int>(shape.row_bytes());
    row_scales = static_cast<int>(shape.scale_columns() *
                                  static_cast<std::int64_t>(size_of(shape.scale_type())) / 4);
  }
  __device__ __forceinline__ float bias_of(long long output) const {
    return bias == nullptr ? 0.0f : widen(bias[output]);
  }
};

template <typename T>
struct Params {
  T* out;
  const T* x;
  const T* norm_weight;  // nullptr: x is normed
  const float* logits;
  T* activated;
  const T *residual, *shared;  // nullptr: none
  const float* shared_gate;
  Weights<T> gate_up, down;
  int columns, inner, experts, k;
  bool renormalize, clamps;  // Activation::clamped_swiglu
  float epsilon, limit;

  explicit Params(const SingleTokenMoe& args)
      : out(args.out.as<T>()),
        x(args.x.as<const T>()),
        norm_weight(args.norm_weight.as<const T>()),
        logits(args.logits.as<const float>()),
        activated(args.activated.as<T>()),
        residual(args.residual.as<const T>()),
        shared(args.shared.as<const T>()),
        shared_gate(args.shared_gate.as<const float>()),
        gate_up(args.gate_up),
        down(args.down),
        columns(static_cast<int>(args.out.shape[1])),
        inner(static_cast<int>(args.down.inputs())),
        experts(static_cast<int>(args.logits.shape[1])),
        k(static_cast<int>(args.k)),
        renormalize(args.renormalize),
        clamps(args.activation == Activation::clamped_swiglu),
        epsilon(args.epsilon),
        limit(args.limit) {}
};

// The experts of the row, in shared memory, and the divisor of their weights.
struct Chosen {
  int experts[kMaxOneRow];
  float exp_logits[kMaxOneRow], divisor;
};

// Called by one warp.
template <typename T>
__device__ __forceinline__ void choose(const Params<T>& p, Chosen& chosen) {
  const auto put = [&](int j, float exp_logit, int expert) {
    if (threadIdx.x % 32 == j) chosen.experts[j] = expert, chosen.exp_logits[j] = exp_logit;
  };
  float divisor = 0;
  if (p.experts <= 128) {
    divisor = select_top_k_experts<4>(p.logits, p.experts, p.k, p.renormalize, put);
  } else if (p.experts <= 256) {
    divisor = select_top_k_experts<8>(p.logits, p.experts, p.k, p.renormalize, put);
  } else {
    divisor = select_top_k_experts<32>(p.logits, p.experts, p.k, p.renormalize, put);
  }
  if (threadIdx.x % 32 == 0) chosen.divisor = divisor;
}

// Bytes of a row in shared memory: whole stages of at most 128 inputs.
__host__ __device__ constexpr int row_bytes_of(int inputs) {
  return (inputs + 127) / 128 * 256;
}

// The sums of x's squares over 32 vectors each, computed by `warps` warps.
template <typename T>
__device__ __forceinline__ void sum_squares(const Params<T>& p, float* sums, int warp, int warps) {
  const int lane = threadIdx.x % 32, slots = norm_slots(p.columns);
  for (int chunk = warp; chunk < slots; chunk += warps) {
    const int vector = chunk * 32 + lane;
    const float sum =
        rms_norm_chunk(vector < p.columns / 8 ? load_vector(p.x + vector * 8) : Vector<T>{});
    if (lane == 0) sums[chunk] = sum;
  }
}

template <typename T>
__device__ __forceinline__ T activate(const Params<T>& p, float gate, float up) {
  if (!p.clamps) return narrow<T>(gated_sum<T>(gate, up));
  return narrow<T>(clamped_swiglu<T>(widen(narrow<T>(gate)), widen(narrow<T>(up)), p.limit));
}

// Called by one warp: finishes a row's outputs, one per lane, from the sums of `splits` warps per
// expert.
template <typename T>
__device__ __forceinline__ void combine(const Params<T>& p, const Chosen& chosen,
                                        const float (*sums)[kTile], int splits, int first) {
  const int lane = threadIdx.x % 32, column = first + lane;
  if (lane >= kTile || column >= p.columns) return;
  float sum = 0;
  for (int j = 0; j < p.k; ++j) {
    float of_expert =
        p.down.bias_of(static_cast<long long>(chosen.experts[j]) * p.columns + column);
    for (int split = 0; split < splits; ++split) of_expert += sums[j * splits + split][lane];
    sum = fmaf(chosen.exp_logits[j] / chosen.divisor, widen(narrow<T>(of_expert)), sum);
  }
  if (p.shared != nullptr) {
    const float gate = 1.0f / (1.0f + expf(-p.shared_gate[0]));
    sum = fmaf(gate, widen(p.shared[column]), sum);
  }
  T result = narrow<T>(sum);
  if (p.residual != nullptr)
    result = narrow<T>(__fadd_rn(widen(p.residual[column]), widen(result)));
  p.out[column] = result;
}

}  // namespace nvllm::kernels::cuda::single_token
