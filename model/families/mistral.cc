// Mistral: Llama without any bias. Its window is in use wherever "sliding_window" is not null.
#include "model/families/family.h"

namespace nvllm::model {

constexpr Family kMistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .window = Family::Window::all_layers,
    .read = [](const ConfigKeys&, ModelConfig&) {},
};

}  // namespace nvllm::model
