#include "model/gguf_names.h"

#include <algorithm>
#include <utility>

namespace nvllm::model {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

constexpr Pair kWhole[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr Pair kOfLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

template <std::size_t n>
std::optional<std::string_view> look_up(const Pair (&names)[n], std::string_view stored) {
  const auto* const found = std::ranges::find(names, stored, &Pair::first);
  if (found == std::end(names)) return std::nullopt;
  return found->second;
}

// "12." at the front of `text`, taken off it. No number begins with a needless 0: names stay different.
std::optional<std::string_view> take_layer(std::string_view& text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 6) return std::nullopt;
  const std::string_view number = text.substr(0, dot);
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  if (number.size() > 1 && number.front() == '0') return std::nullopt;
  text.remove_prefix(dot + 1);
  return number;
}

}  // namespace

std::optional<std::string> hugging_face_name(std::string_view stored) {
  const std::size_t dot = stored.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view ending = stored.substr(dot);
  if (ending != ".weight" && ending != ".bias") return std::nullopt;
  std::string_view module = stored.substr(0, dot);

  if (const auto name = look_up(kWhole, module)) return std::string(*name).append(ending);
  if (!module.starts_with("blk.")) return std::nullopt;
  module.remove_prefix(4);
  const auto layer = take_layer(module);
  const auto name = layer ? look_up(kOfLayer, module) : std::nullopt;
  if (!name) return std::nullopt;
  return std::string("model.layers.").append(*layer).append(".").append(*name).append(ending);
}

}  // namespace nvllm::model
