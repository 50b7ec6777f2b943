// Qwen3: every head of q and k is normed before RoPE.
#include "model/families/family.h"

namespace nvllm::model {

constexpr Family kQwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .window = Family::Window::upper_layers,
    .read =
        [](const ConfigKeys& keys, ModelConfig& config) {
          config.qk_norm = true;
          config.qkv_bias = config.output_bias = keys.flag("attention_bias", false);
        },
};

}  // namespace nvllm::model
