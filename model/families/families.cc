#include <algorithm>
#include <array>
#include <vector>

#include "kernels/moe/moe.h"
#include "model/families/family.h"

namespace nvllm::model {

namespace {

constexpr std::array<const Family*, 14> kFamilies = {
    &kGemma3,  &kGemma3TextPart, &kGemma4, &kGemma4TextPart, &kGptOss,    &kLlama,    &kMistral,
    &kMixtral, &kQwen2,          &kQwen3,  &kQwen35,         &kQwen35Moe, &kQwen3Moe, &kQwen3Next};

}  // namespace

std::span<const Family* const> families() {
  return kFamilies;
}

MoeConfig read_moe(const ConfigKeys& keys, const char* experts_key, const char* intermediate_key,
                   std::int64_t layers, const char* per_token_key) {
  MoeConfig mixture;
  mixture.experts = keys.integer(experts_key, {1, kernels::kMaxExperts});
  mixture.experts_per_token = keys.integer(per_token_key, {1, kernels::kMaxExperts});
  if (mixture.experts_per_token > mixture.experts) {
    keys.refuse(per_token_key, "must not be above ", experts_key, ", which is ", mixture.experts);
  }
  mixture.intermediate_size = keys.integer(intermediate_key, {1, kMaxIntermediate});
  mixture.layers.assign(static_cast<std::size_t>(layers), true);
  return mixture;
}

MoeConfig read_mixture_in_some(const ConfigKeys& keys, std::int64_t layers) {
  MoeConfig mixture = read_moe(keys, "num_experts", "moe_intermediate_size", layers);
  const std::int64_t step =
      keys.optional_integer("decoder_sparse_step", {1, kMaxLayers}).value_or(1);
  const std::vector<std::int64_t> dense = keys.integers("mlp_only_layers", {0, kMaxLayers});
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    mixture.layers[static_cast<std::size_t>(layer)] =
        (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
  }
  return mixture.layer_count() == 0 ? MoeConfig{} : mixture;
}

const Family* find_family(std::string_view architecture) {
  for (const Family* family : kFamilies) {
    if (family->architecture == architecture) return family;
    if (family->other_spelling != nullptr && family->other_spelling == architecture) return family;
  }
  return nullptr;
}

const Family* find_family_of_type(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

}  // namespace nvllm::model
