// Qwen3-MoE: Qwen3 with a mixture of experts in all layers but some.
#include <algorithm>
#include <vector>

#include "model/families/family.h"

namespace nvllm::model {
namespace {

constexpr std::int64_t kMaxLayers = 4096;

// A layer has no experts if "mlp_only_layers" names it, or by "decoder_sparse_step".
MixtureConfig read_layers(const ConfigKeys& keys, std::int64_t layers) {
  MixtureConfig mixture = read_mixture(keys, "num_experts", "moe_intermediate_size", layers);
  mixture.renormalize = keys.flag("norm_topk_prob", false);
  const std::int64_t step =
      keys.optional_integer("decoder_sparse_step", {1, kMaxLayers}).value_or(1);
  const std::vector<std::int64_t> dense = keys.integers("mlp_only_layers", {0, kMaxLayers});
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    mixture.layers[static_cast<std::size_t>(layer)] =
        (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
  }
  return mixture.layer_count() == 0 ? MixtureConfig{} : mixture;
}

}  // namespace

constexpr Family kQwen3Moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .window = Family::Window::upper_layers,
    .has_experts = true,
    .read =
        [](const ConfigKeys& keys, ModelConfig& config) {
          config.qk_norm = true;
          config.qkv_bias = config.output_bias = keys.flag("attention_bias", false);
          config.mixture = read_layers(keys, config.layers);
        },
};

}  // namespace nvllm::model
