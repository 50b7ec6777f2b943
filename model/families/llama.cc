// Llama, and the families whose configurations differ from it by a flag or two: Mistral, Mixtral
// and Qwen2.
#include "model/families/family.h"

namespace nvllm::model {

// Llama 2 and 3.x, SmolLM2 and the many models that are built like them.
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

// Mistral: Llama without any bias. Its window is in use wherever "sliding_window" is not null.
constexpr Family kMistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .window = Family::Window::all_layers,
    .read = [](const ConfigKeys&, ModelConfig&) {},
};

// Mixtral: Mistral with a mixture of experts in every layer.
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

// Qwen2 and Qwen2.5: q, k and v have a bias.
constexpr Family kQwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .window = Family::Window::upper_layers,
    .read = [](const ConfigKeys&, ModelConfig& config) { config.qkv_bias = true; },
};

}  // namespace nvllm::model
