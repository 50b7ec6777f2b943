// Family: the differences of one kind of decoder from the common config.json. Each family is one
// short file of this folder, declared below and listed in families.cc; docs/add-a-model.md explains
// how to add one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/config/config.h"
#include "model/config/config_keys.h"

namespace nvllm::model {

// Upper limit for configurations.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxIntermediate = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxHeads = 65536;

struct Family {
  const char* architecture;              // in config.json's "architectures"
  const char* other_spelling = nullptr;  // an alternative name of the architecture
  const char* model_type;                // in config.json, if "architectures" is absent

  bool tied_embeddings = false;  // if "tie_word_embeddings" is absent
  // The layers to which "sliding_window" applies if there are no "layer_types": all, or every other
  // one starting with the first, unless "use_sliding_window" is false; or, only if that is true,
  // those from "max_window_layers" on; or all but every "sliding_window_pattern"-th.
  enum class Window : std::uint8_t { none, all_layers, even_layers, upper_layers, pattern };
  Window window = Window::none;
  // Sliding-window layers have a separate RoPE with theta "rope_local_base_freq".
  bool local_rope = false;
  double rope_theta = 1e4;   // default
  bool text_part = false;    // the text part of a multimodal model; keys are in "text_config"
  bool has_experts = false;  // `read` sets ModelConfig::moe; otherwise expert keys are rejected
  // `read` sets ModelConfig::linear_attention; otherwise layers with it are rejected.
  bool linear_attention = false;
  bool partial_rope = false;  // "partial_rotary_factor" may be below 1
  bool skips_mtp = false;     // ModelConfig::skips_mtp

  // Values of keys that config.json may leave out, a JSON object.
  const char* defaults = "{}";

  // Sets the family's own flags: biases, norms of q and k. The common keys, except for windows,
  // have been read before.
  void (*read)(const ConfigKeys& keys, ModelConfig& config);

  TensorNames names = {};
};

// The family of multimodal models whose text part is one of this family.
constexpr Family with_text_part(Family family, const char* architecture, const char* model_type) {
  family.architecture = architecture;
  family.model_type = model_type;
  family.text_part = true;
  return family;
}

// All families, as listed by families().
extern const Family kGemma3;
extern const Family kGemma3TextPart;
extern const Family kGemma4;
extern const Family kGemma4TextPart;
extern const Family kGptOss;
extern const Family kLlama;
extern const Family kMistral;
extern const Family kMixtral;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kQwen35;
extern const Family kQwen35Moe;
extern const Family kQwen3Moe;
extern const Family kQwen3Next;

std::span<const Family* const> families();

// A mixture of `experts_key` experts in every layer, with this intermediate size and number of
// experts per token.
MoeConfig read_moe(const ConfigKeys& keys, const char* experts_key, const char* intermediate_key,
                   std::int64_t layers, const char* per_token_key = "num_experts_per_tok");

// The same with "num_experts" and "moe_intermediate_size", in all layers except those that
// "mlp_only_layers" names or "decoder_sparse_step" excludes; if none remain, no mixture.
MoeConfig read_mixture_in_some(const ConfigKeys& keys, std::int64_t layers);

// nullptr: unknown.
const Family* find_family(std::string_view architecture);
const Family* find_family_of_type(std::string_view model_type);

}  // namespace nvllm::model
