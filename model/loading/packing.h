// Decides which weights stay quantized, and in which GEMM weight format
// (kernels/gemm/quantized_weight.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/gemm/quantized_weight.h"
#include "layers/parameter.h"
#include "model/checkpoint/checkpoint.h"
#include "model/loading/quantization_choice.h"

namespace nvllm::model {

// A lossless format for a tensor; integers of more bits and smaller groups are lossless, too.
struct Packing {
  kernels::WeightFormat format = kernels::WeightFormat::fp8;
  std::int64_t group = kernels::kFp8Group;
};

// Nothing if the tensor is not quantized, or not in a supported way: it must then be dequantized.
std::optional<Packing> packing_of(const StoredTensor& tensor);

// Whether a weight of this shape represents a tensor with that packing exactly.
bool fits(const Packing& packing, const kernels::QuantizedShape& shape);

// Throws an Error if scales or offsets are too large for the shape's format. (NaN passes: it shows
// in the output.)
void check_scales(const StoredTensor& tensor, const kernels::QuantizedShape& shape,
                  std::span<const float> scales, std::span<const float> offsets);

// Decides for each parameter, before memory is bound. checkpoint: nullptr with random weights.
void choose_quantization(std::span<layers::Parameter* const> parameters,
                         const Checkpoint* checkpoint, const QuantizationChoice& choice);

}  // namespace nvllm::model
