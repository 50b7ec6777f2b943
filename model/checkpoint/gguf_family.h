// The Hugging Face equivalents of a GGUF architecture: the class of the model, the names of its
// tensors, and the order of their rows, which depends on its heads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "model/checkpoint/gguf.h"

namespace nvllm::model {

struct GgufFamily {
  // The names of a layer's module in GGUF and in Hugging Face; '*' stands for an expert's number.
  using Name = std::pair<std::string_view, std::string_view>;

  // The kind of its configuration keys in addition to the common ones.
  enum class Kind : std::uint8_t {
    common,
    gemma3,
    gemma4,
    qwen35,
    mixtral,
    gemma4_moe,
    qwen3_moe,
    gpt_oss,
    qwen3_next,
    qwen35_moe
  };

  const char* architecture;  // metadata "general.architecture"
  const char* class_name;
  const char* model_type;
  Kind kind = Kind::common;
  // Rows of q and k are stored as adjacent rotary pairs (GgufHeads).
  bool permuted = false;
  bool always_biased = false;  // q, k and v: implied by the class, not in the configuration
  // Modules that only this family has, or names differently.
  std::span<const Name> names = {};
  // The same for whole tensors: "attn_sinks.weight".
  std::span<const Name> tensors = {};

  // Families with "expert_count" above 0.
  bool has_experts() const { return kind >= Kind::mixtral; }
  bool is_gemma4() const { return kind == Kind::gemma4 || kind == Kind::gemma4_moe; }
  bool has_linear_attention() const {
    return kind == Kind::qwen35 || kind == Kind::qwen3_next || kind == Kind::qwen35_moe;
  }
};

// Throws an Error for any other architecture.
const GgufFamily& gguf_family(const GgufMetadata& metadata);

// The number of decoder layers. They may be followed by multi-token prediction layers, whose
// tensors hugging_face_name() puts under "mtp.".
std::int64_t gguf_layers(const GgufMetadata& metadata, const GgufFamily& family);

// "attn_q" for "blk.3.attn_q.weight"; "" for a tensor outside the layers.
std::string_view gguf_module(std::string_view stored);

// "model.layers.3.self_attn.q_proj.weight" for "blk.3.attn_q.weight". All experts of a layer may be
// in one tensor: its name has a '*' for their numbers. nullopt: an unknown name.
std::optional<std::string> hugging_face_name(std::string_view stored, const GgufFamily& family,
                                             std::int64_t layers);

// The heads of a model in a GGUF file, which determine the order of rows.
struct GgufHeads {
  bool permuted = false;  // rows of q and k are stored as adjacent rotary pairs
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  // For linear attention; 0: the model has none.
  std::int64_t key_heads = 0, value_heads = 0;
  std::int64_t key_dim = 0, value_dim = 0;  // per head
  // Value heads are ordered by their index within the key head, then by key head.
  bool tiled = false;
};
GgufHeads gguf_heads(const GgufMetadata& metadata);

// Sets the tensor's row or column permutation in the file, and whether it holds a decay instead of
// its logarithm. `module`: "attn_qkv", within a layer. Throws an Error for a shape that does not
// fit the heads.
void set_stored_order(StoredTensor& tensor, std::string_view module, const GgufHeads& heads,
                      const std::string& file);

}  // namespace nvllm::model
