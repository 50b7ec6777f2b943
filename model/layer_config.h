// What a model's configuration says of one of its layers: the layer's sizes, its options, and the
// names of its tensors.
#pragma once

#include <cstdint>

#include "layers/decoder_layer.h"
#include "model/config/config.h"

namespace nvllm::model {

layers::DecoderLayerConfig layer_config(const ModelConfig& config, std::int64_t layer);

}  // namespace nvllm::model
