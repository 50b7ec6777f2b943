// A config.json, as Hugging Face would have it, made from a GGUF file's header.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "model/gguf.h"

namespace nvllm::model {

// What the header says of a model's attention, for those who undo the permutation of its rows.
struct GgufHeads {
  bool permuted = false;  // rows of q and k lie in adjacent rotary pairs
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
};
GgufHeads gguf_heads(const GgufMetadata& metadata);

// `rope_factors`: the values of rope_freqs.weight; empty: there is none. Anything in the metadata that
// config.json could not say, or this program could not compute, is refused by name.
std::string gguf_config_json(const GgufHeader& header, std::span<const float> rope_factors);

}  // namespace nvllm::model
