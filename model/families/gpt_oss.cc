// gpt-oss: attention with biases, sinks and a window in every other layer; experts with biases and
// a clamped SwiGLU, in MXFP4 or as floats.
#include "model/families/family.h"

namespace nvllm::model {

constexpr Family kGptOss = {
    .architecture = "GptOssForCausalLM",
    .model_type = "gpt_oss",
    .window = Family::Window::even_layers,
    .has_experts = true,
    .read =
        [](const ConfigKeys& keys, ModelConfig& config) {
          config.qkv_bias = config.output_bias = keys.flag("attention_bias", true);
          config.attention_sinks = true;
          config.moe = read_moe(keys, "num_local_experts", "intermediate_size", config.layers);
          // The softmax is over the chosen experts alone.
          config.moe.renormalize = true;
          config.moe.bias = true;
          if (config.activation != kernels::Activation::silu) {
            keys.refuse("hidden_act", "a GptOssForCausalLM has silu");
          }
          config.moe.activation = kernels::Activation::clamped_swiglu;
          config.moe.limit =
              static_cast<float>(keys.optional_number("swiglu_limit", {1e-3, 1e6}).value_or(7));
          config.moe.shard_alignment = 32;  // groups of MXFP4
        },
    .names = {.router = "mlp.router"},
};

}  // namespace nvllm::model
