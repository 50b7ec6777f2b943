// Element-wise operations: the gated activation of an MLP, the output gate of attention, the scaled
// sum of two tensors and capped logits. Each computes in float32 and rounds once. Unless a comment
// says otherwise, all tensors of an operation are of one type (float32, bfloat16 or float16). Any
// number of rows and columns is allowed.
//
// NAME() and check_NAME() throw an Error that names the argument that does not fit.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

enum class Activation : std::uint8_t {
  silu,            // g / (1 + exp(-g))
  gelu,            // g * (1 + erf(g / sqrt(2))) / 2
  gelu_tanh,       // the same with tanh(sqrt(2 / pi) * (g + 0.044715 g^3)) for erf(...)
  clamped_swiglu,  // g / (1 + exp(-1.702 g)) of a clamped gate; see GatedActivation
};
inline constexpr float kClampedSwigluAlpha = 1.702f;
const char* name_of(Activation activation);

// out[r][i] = activation(x[r][i]) * x[r][n + i]; both tensors are dense.
//
// clamped_swiglu replaces g by min(g, limit), and the up value u by clamp(u, -limit, limit) + 1.
struct GatedActivation {
  TensorView out;  // [rows, n]
  TensorView x;    // [rows, 2 * n]: the gate projection, then the up projection
  Activation activation = Activation::silu;
  float limit = 0;  // only for clamped_swiglu: positive
};

void gated_activation(const GatedActivation& args, Stream& stream);
void check_gated_activation(const GatedActivation& args);

// The output gate of attention: x[r][c] = x[r][c] * sigmoid(gate[r][c]).
struct SigmoidGate {
  TensorView x;     // [rows, columns], dense
  TensorView gate;  // [rows, columns], dense
};

void sigmoid_gate(const SigmoidGate& args, Stream& stream);
void check_sigmoid_gate(const SigmoidGate& args);

// out = (a + b) * scale * factor[0]; the tensors have any row stride.
struct ScaledSum {
  TensorView out;  // [rows, columns]; may alias a or b
  TensorView a;    // [rows, columns]
  TensorView b{};  // [rows, columns]; data == nullptr: zeros
  float scale = 1;
  TensorView factor{};  // [1]; data == nullptr: 1
};

void scaled_sum(const ScaledSum& args, Stream& stream);
void check_scaled_sum(const ScaledSum& args);

// Capped logits: x[r][c] = cap * tanh(x[r][c] / cap), within 2^-21 of cap.
struct SoftCap {
  TensorView x;   // [rows, columns], float32; any row stride
  float cap = 0;  // positive
};

void soft_cap(const SoftCap& args, Stream& stream);
void check_soft_cap(const SoftCap& args);

}  // namespace nvllm::kernels
