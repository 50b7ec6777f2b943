// The activation between the two products of an MLP.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

enum class Activation : std::uint8_t {
  silu,       // g / (1 + exp(-g))
  gelu,       // g * (1 + erf(g / sqrt(2))) / 2
  gelu_tanh,  // the same with tanh(sqrt(2 / pi) * (g + 0.044715 g^3)) for erf(...)
};
const char* name_of(Activation activation);

// out[r][i] = round(activation(x[r][i]) * x[r][n + i]), in float32, rounded once.
struct GatedActivation {
  TensorView out;  // [rows, n]
  TensorView x;    // [rows, 2 * n]: the gates, then what they let through
  Activation activation = Activation::silu;
};

// Enqueues it. Both dense, of one type (float32, bfloat16 or float16); any number of rows and columns,
// also 0; otherwise an Error that names the argument.
void gated_activation(const GatedActivation& args, Stream& stream);

void check_gated_activation(const GatedActivation& args);

// The plain definition, run at once by the caller.
void gated_activation_reference(const GatedActivation& args);

}  // namespace nvllm::kernels
