// Adding a bias to rows.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// x[r][i] = round(x[r][i] + bias[i]), in place.
struct AddBias {
  TensorView x;     // [rows, columns]
  TensorView bias;  // [columns]
};

// Enqueues it. Both dense, of one type (float32, bfloat16 or float16); any number of rows and columns,
// also 0; otherwise an Error that names the argument.
void add_bias(const AddBias& args, Stream& stream);

void check_add_bias(const AddBias& args);

// The plain definition, run at once by the caller.
void add_bias_reference(const AddBias& args);

}  // namespace nvllm::kernels
