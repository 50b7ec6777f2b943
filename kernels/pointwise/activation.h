// The gated activation of an MLP.
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

// out[r][i] = round(activation(x[r][i]) * x[r][n + i]), in float32, rounded once. Both tensors are
// dense and of one type (float32, bfloat16 or float16). Any number of rows and columns is allowed.
//
// clamped_swiglu replaces g by min(g, limit), and the up value u by clamp(u, -limit, limit) + 1.
struct GatedActivation {
  TensorView out;  // [rows, n]
  TensorView x;    // [rows, 2 * n]: the gate projection, then the up projection
  Activation activation = Activation::silu;
  float limit = 0;  // only for clamped_swiglu: positive
};

// Throws an Error that names the argument that does not fit.
void gated_activation(const GatedActivation& args, Stream& stream);
void check_gated_activation(const GatedActivation& args);

}  // namespace nvllm::kernels
