// Checks that a checkpoint has exactly the tensors of this model, in the right shapes.
#pragma once

#include <cstdint>
#include <span>

#include "layers/parameter.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace nvllm::model {

// `parameters`: those of a single rank, which owns everything. An Error names the file, the tensor,
// what is expected and what was found. Allowed in addition are what older programs stored beside
// the weights (RoPE's inverse frequencies), the LM head of a model with tied embeddings, and biases
// of zeros beside quantized weights, and what would make keys and values in layers that read those
// of others; where the model is the text part of a multimodal one, tensors
// of the other parts; and of some families, layers that predict further tokens. Returns how many
// tensors of the last two kinds there are.
std::int64_t check_tensors(std::span<layers::Parameter* const> parameters,
                           const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace nvllm::model
