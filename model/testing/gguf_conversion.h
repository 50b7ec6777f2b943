// Makes GGUF files of small models in safetensors, as llama.cpp's converter does, for tests.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "model/checkpoint/checkpoint.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {

struct GgufConversion {
  // Of a tensor by GGUF's name: matrices and experts only, all others are F32.
  std::function<GgufType(std::string_view)> type = [](std::string_view) { return GgufType::f32; };
  bool tensor_per_expert = false;  // as files of before April 2024 have them
  // Of Qwen3-Next: q, k, v and z in one tensor, by key head, as files of 2025 have them.
  bool joint_qkvz = false;
  bool joint_gate_up = false;  // of experts: one tensor of both
  bool with_mtp = false;       // a layer behind the others that predicts further tokens
};

// The bytes of a file. `checkpoint`: of a dense Llama, Mistral, Qwen2 or Qwen3 without scaled RoPE;
// of a MixtralForCausalLM, Qwen3MoeForCausalLM, GptOssForCausalLM or Qwen3NextForCausalLM; or the
// language model of a Qwen3.5, Gemma 3 or Gemma 4.
std::string gguf_of(const Checkpoint& checkpoint, const GgufConversion& conversion);

// Of the latter two.
std::string gguf_of_gemma(const Checkpoint& checkpoint, const GgufConversion& conversion);

}  // namespace nvllm::model
