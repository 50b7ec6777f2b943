// Family: how one kind of decoder differs from the common config.json. Each family is one short
// file of this folder, declared below and listed in families.cc; docs/add-a-model.md adds one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/config/config.h"
#include "model/config/config_keys.h"

namespace nvllm::model {

// What a configuration may say at most.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxIntermediate = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxHeads = 65536;

struct Family {
  const char* architecture;              // in config.json's "architectures"
  const char* other_spelling = nullptr;  // of the architecture
  const char* model_type;                // in config.json, should "architectures" be absent

  bool tied_embeddings = false;  // where "tie_word_embeddings" is absent
  // Which layers "sliding_window" is of, where no "layer_types" says it: all, or every other one
  // from the first on, unless "use_sliding_window" is false; or, only if that is true, those from
  // "max_window_layers" on; or all but every "sliding_window_pattern"-th.
  enum class Window : std::uint8_t { none, all_layers, even_layers, upper_layers, pattern };
  Window window = Window::none;
  // Layers with a window have a RoPE of their own, of theta "rope_local_base_freq".
  bool local_rope = false;
  double rope_theta = 1e4;   // where it is absent
  bool text_part = false;    // of a multimodal model; keys are in "text_config"
  bool has_experts = false;  // `read` sets ModelConfig::mixture; else keys of experts are refused
  // `read` sets ModelConfig::linear_attention; else layers that have it are refused.
  bool linear_attention = false;
  bool partial_rope = false;  // "partial_rotary_factor" may be below 1
  bool skips_mtp = false;     // ModelConfig's

  // Values of keys that config.json may leave out, a JSON object.
  const char* defaults = "{}";

  // Sets the family's own flags: biases, norms of q and k. The common keys have been read before,
  // but for windows.
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

// All families, which families() lists.
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

// A mixture of `experts_key` experts in every layer, of that intermediate size, of which a token
// goes through so many.
MixtureConfig read_mixture(const ConfigKeys& keys, const char* experts_key,
                           const char* intermediate_key, std::int64_t layers,
                           const char* per_token_key = "num_experts_per_tok");

// The same of "num_experts" of "moe_intermediate_size", in all layers but those that
// "mlp_only_layers" names or "decoder_sparse_step" leaves out; none left: no mixture.
MixtureConfig read_mixture_in_some(const ConfigKeys& keys, std::int64_t layers);

// nullptr: unknown.
const Family* find_family(std::string_view architecture);
const Family* find_family_of_type(std::string_view model_type);

}  // namespace nvllm::model
