// Qwen3-MoE: Qwen3 with a mixture of experts in all layers but some.
#include "model/families/family.h"

namespace nvllm::model {

constexpr Family kQwen3Moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .window = Family::Window::upper_layers,
    .has_experts = true,
    .read =
        [](const ConfigKeys& keys, ModelConfig& config) {
          config.qk_norm = true;
          config.qkv_bias = config.output_bias = keys.flag("attention_bias", false);
          config.moe = read_mixture_in_some(keys, config.layers);
          config.moe.renormalize = keys.flag("norm_topk_prob", false);
        },
};

}  // namespace nvllm::model
