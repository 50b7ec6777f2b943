// Llama 2 and 3.x, SmolLM2 and the many models that are built like them.
#include "model/families/family.h"

namespace nvllm::model {

constexpr Family kLlama = {
    .architecture = "LlamaForCausalLM",
    .other_spelling = "LLaMAForCausalLM",
    .model_type = "llama",
    .read =
        [](const ConfigKeys& keys, ModelConfig& config) {
          config.qkv_bias = config.output_bias = keys.flag("attention_bias", false);
          config.mlp_bias = keys.flag("mlp_bias", false);
        },
};

}  // namespace nvllm::model
