// Converts small safetensors models to GGUF like llama.cpp's converter, for tests.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "model/checkpoint/checkpoint.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {

struct GgufConversion {
  // Type by GGUF name: only for matrices and experts, all others are F32.
  std::function<GgufType(std::string_view)> type = [](std::string_view) { return GgufType::f32; };
  bool tensor_per_expert = false;  // as in files before April 2024
  // Qwen3-Next: q, k, v and z in one tensor, grouped by key head, as in files of 2025.
  bool joint_qkvz = false;
  bool joint_gate_up = false;  // of experts: gate and up in one tensor
  bool with_mtp = false;       // an extra multi-token prediction layer
};

// The bytes of a file. `checkpoint`: of a dense Llama, Mistral, Qwen2 or Qwen3 without scaled RoPE;
// of a MixtralForCausalLM, Qwen3MoeForCausalLM, GptOssForCausalLM or Qwen3NextForCausalLM; or the
// language model of a Qwen3.5, Gemma 3 or Gemma 4.
std::string gguf_of(const Checkpoint& checkpoint, const GgufConversion& conversion);

// For Gemma 3 and 4.
std::string gguf_of_gemma(const Checkpoint& checkpoint, const GgufConversion& conversion);

}  // namespace nvllm::model
