// The gated delta rule: the recurrence of Gated DeltaNet, with the norm and gate of its results.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/linear_attention/state_rows.h"

namespace nvllm::kernels {

// Value head j reads key head j / (value heads / key heads). With q, k, v, z of a row's head, and
// the head's state S, [dk, dv]:
//   q = q / sqrt(sum of q² + 1e-6) / sqrt(dk),  k = k / sqrt(sum of k² + 1e-6)
//   beta = sigmoid(b),  decay = exp(-exp(a_log) * softplus(a + dt_bias))
//   d = beta * (v - decay * Sᵀk),  S = decay * S + k dᵀ,  o = Sᵀq
//   out = o / sqrt(mean of o² + epsilon) * norm * silu(z)
// All of it is in float32; out is rounded once.
struct GatedDeltaRule {
  TensorView out;      // [rows, value_heads * dv], dense
  TensorView qkv;      // [rows, 2 * key_heads * dk + value_heads * dv], dense: all q, all k, all v
  TensorView z;        // [rows, value_heads * dv]; rows may lie apart
  TensorView ba;       // [rows, 2 * value_heads], float32, dense: all b, all a
  TensorView a_log;    // [value_heads], float32
  TensorView dt_bias;  // [value_heads], float32
  TensorView norm;     // [dv], float32
  TensorView state;    // [slots, value_heads, dk, dv], float32
  StateRows rows;
  std::int64_t key_heads = 0;
  float epsilon = 1e-6f;

  std::int64_t value_heads() const { return state.shape[1]; }
  std::int64_t dk() const { return state.shape[2]; }
  std::int64_t dv() const { return state.shape[3]; }
};

// Of dk and dv, which are multiples of 8.
inline constexpr std::int64_t kMaxStateDim = 256;

// Enqueues it. out, qkv and z of one type (float32, bfloat16 or float16); otherwise an Error that
// names the argument. GPUs before compute capability 9.0 take dv up to 128.
void gated_delta_rule(const GatedDeltaRule& args, Stream& stream);
void check_gated_delta_rule(const GatedDeltaRule& args);

}  // namespace nvllm::kernels
