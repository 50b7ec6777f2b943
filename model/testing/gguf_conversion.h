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
};

// The bytes of a file. `checkpoint`: of a MixtralForCausalLM, Qwen3MoeForCausalLM or
// GptOssForCausalLM.
std::string gguf_of(const Checkpoint& checkpoint, const GgufConversion& conversion);

}  // namespace nvllm::model
