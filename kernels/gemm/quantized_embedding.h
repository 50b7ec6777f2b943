// Embedding lookup in a quantized table, as kernels/pointwise/step_input.h has it for floats.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/gemm/quantized_weight.h"

namespace nvllm::kernels {

// out[r] = row ids[r] - first_id of the table, dequantized, times scale, or zeros if the table has
// no such row: a rank with a part of a vocabulary yields its summand of the sum over the ranks.
struct QuantizedEmbedding {
  TensorView out;        // [rows, shape.inputs], any float type
  TensorView ids;        // [rows], int32
  QuantizedShape shape;  // of the table, not mxfp4; its outputs are the entries
  TensorView values;     // [entries, shape.row_bytes()], uint8
  TensorView scales;     // [entries, shape.scale_columns()]
  std::int64_t first_id = 0;
  float scale = 1;
};

// All tensors are dense. Throws an Error that names the argument.
void quantized_embedding(const QuantizedEmbedding& args, Stream& stream);

namespace cuda {
void quantized_embedding(const QuantizedEmbedding& args, Stream& stream);
}

}  // namespace nvllm::kernels
