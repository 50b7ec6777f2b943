// GGUF's names of a llama-like model's tensors, and Hugging Face's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nvllm::model {

// The factors of Llama 3's RoPE scaling: no tensor of the model, but a part of its configuration.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight"; nullopt: a name not known here.
std::optional<std::string> hugging_face_name(std::string_view stored);

}  // namespace nvllm::model
