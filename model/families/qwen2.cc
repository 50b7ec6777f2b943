// Qwen2 and Qwen2.5: q, k and v have a bias.
#include "model/families/family.h"

namespace nvllm::model {

constexpr Family kQwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .window = Family::Window::upper_layers,
    .read = [](const ConfigKeys&, ModelConfig& config) { config.qkv_bias = true; },
};

}  // namespace nvllm::model
