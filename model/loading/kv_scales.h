// The scales of a KV cache in FP8 that a checkpoint has: for each layer one number for all keys and
// one for all values, or one for each KV head. They are called self_attn.k_scale and
// self_attn.v_scale, or self_attn.k_proj.k_scale and self_attn.v_proj.v_scale.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "layers/partition.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace nvllm::model {

// Those of some of the KV heads, [layers][2][heads]: a layer's for keys, then those for values, of
// layers with keys and values of their own. heads_of: which, by the layer. Empty: the checkpoint
// has none. An Error names a tensor that is missing, of another shape, or no number above 0.
std::vector<float> read_kv_scales(const Checkpoint& checkpoint, const ModelConfig& config,
                                  const std::function<layers::Range(std::int64_t)>& heads_of);

}  // namespace nvllm::model
