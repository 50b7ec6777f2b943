// Checks that a checkpoint has exactly the tensors of a model, in the right shapes.
#pragma once

#include <cstdint>
#include <span>

#include "layers/parameter.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace nvllm::model {

// `parameters`: those of a single rank, which owns everything. Throws an Error that names the file,
// the tensor, the expected shape and the actual one. Additional tensors are allowed: those that
// older programs stored along with the weights (RoPE's inverse frequencies), the LM head of a model
// with tied embeddings, biases of zeros of quantized weights, and K/V projections of layers that
// reuse other layers' K/V; if the model is the text part of a multimodal one, tensors of the other
// parts; and, in some families, multi-token prediction layers. Returns the number of tensors of the
// last two kinds.
std::int64_t check_tensors(std::span<layers::Parameter* const> parameters,
                           const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace nvllm::model
