#pragma once

#include <cstdint>

#include "layers/rope.h"
#include "model/config_keys.h"

namespace nvllm::model {

// RoPE's part of a config. Types, and keys of a type, that this program cannot compute are refused.
layers::RopeConfig read_rope(const ConfigKeys& keys, std::int64_t max_position_embeddings);

}  // namespace nvllm::model
