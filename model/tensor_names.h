// TensorNames: what a decoder's tensors are called in its checkpoints. The names that nearly all decoders
// have are the defaults; a family gives those that differ.
#pragma once

#include <cstdint>
#include <string>

namespace nvllm::model {

struct TensorNames {
  const char* embedding = "model.embed_tokens.weight";
  const char* final_norm = "model.norm.weight";
  const char* head = "lm_head.weight";  // of models that are not tied

  // Of a layer: this, the layer's number, a dot and one of those below.
  const char* layers = "model.layers.";
  const char* attention_norm = "input_layernorm.weight";
  const char* mlp_norm = "post_attention_layernorm.weight";
  const char* q_norm = "self_attn.q_norm.weight";
  const char* k_norm = "self_attn.k_norm.weight";
  // Of a product: followed by ".weight" or ".bias".
  const char* q = "self_attn.q_proj";
  const char* k = "self_attn.k_proj";
  const char* v = "self_attn.v_proj";
  const char* output = "self_attn.o_proj";
  const char* gate = "mlp.gate_proj";
  const char* up = "mlp.up_proj";
  const char* down = "mlp.down_proj";

  // "model.layers.3." + part
  std::string in_layer(std::int64_t layer, const char* part) const {
    return layers + std::to_string(layer) + "." + part;
  }
};

}  // namespace nvllm::model
