// Mixtral: Mistral with a mixture of experts in every layer.
#include "model/families/family.h"

namespace nvllm::model {

constexpr Family kMixtral = {
    .architecture = "MixtralForCausalLM",
    .model_type = "mixtral",
    .window = Family::Window::all_layers,
    .has_experts = true,
    .read =
        [](const ConfigKeys& keys, ModelConfig& config) {
          config.moe = read_moe(keys, "num_local_experts", "intermediate_size", config.layers);
          config.moe.renormalize = true;
        },
    .names = {.router = "block_sparse_moe.gate",
              .experts = "block_sparse_moe.experts.",
              .expert_gate = "w1",
              .expert_up = "w3",
              .expert_down = "w2"},
};

}  // namespace nvllm::model
