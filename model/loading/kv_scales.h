// A checkpoint's scales of an FP8 KV cache: for each layer one number for all keys and one for all
// values, or one per KV head. Tensors are named self_attn.k_scale and self_attn.v_scale, or
// self_attn.k_proj.k_scale and self_attn.v_proj.v_scale.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "layers/partition.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace nvllm::model {

// The scales of some KV heads, [layers][2][heads]: per layer first those of keys, then those of
// values, for layers with K/V of their own. heads_of: the heads by layer. Empty: the checkpoint has
// none. Throws an Error that names a tensor that is missing, of another shape, or not above 0.
std::vector<float> read_kv_scales(const Checkpoint& checkpoint, const ModelConfig& config,
                                  const std::function<layers::Range(std::int64_t)>& heads_of);

}  // namespace nvllm::model
