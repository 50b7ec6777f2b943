// Whether a checkpoint is this model's: every tensor there, of the right shape, and none that nobody asks for.
#pragma once

#include <span>

#include "layers/parameter.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace nvllm::model {

// parameters: of one rank alone, which owns everything. An Error that names the file, the tensor, what is
// expected and what was found. Left over may be what older programs stored beside the weights (the
// inverse frequencies of RoPE), and the head of a tied model.
void check_tensors(std::span<layers::Parameter* const> parameters, const Checkpoint& checkpoint,
                   const ModelConfig& config);

}  // namespace nvllm::model
