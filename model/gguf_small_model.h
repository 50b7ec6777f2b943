// A small model's metadata, and what becomes of it as a GGUF file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "model/checkpoint.h"
#include "model/gguf_builder.h"
#include "model/test_folder.h"

namespace nvllm::model {

// Metadata of a model with 2 heads of 4, 1 head of keys and values, 3 tokens, 1 layer.
inline GgufBuilder metadata_of(const std::string& architecture) {
  GgufBuilder b;
  b.text("general.architecture", architecture);
  b.u32(architecture + ".block_count", 1).u32(architecture + ".context_length", 128);
  b.u32(architecture + ".embedding_length", 8).u32(architecture + ".feed_forward_length", 6);
  b.u32(architecture + ".attention.head_count", 2);
  b.u32(architecture + ".attention.head_count_kv", 1);
  b.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return b;
}

inline GgufBuilder& add_embedding(GgufBuilder& b) {
  return b.counting("token_embd.weight", {8, 3});
}

inline Checkpoint open(const GgufBuilder& builder) {
  const TestFolder folder;
  folder.write("model.gguf", builder.file());
  return open_checkpoint(folder.path());
}

inline nlohmann::json config_of(const GgufBuilder& builder) {
  return parse_json(open(builder).config_json());
}

inline std::string error_of_file(const GgufBuilder& builder) {
  const TestFolder folder;
  folder.write("model.gguf", builder.file());
  return error_of(folder, "model.gguf");
}

}  // namespace nvllm::model
