#include "model/config.h"

#include <string>

#include "base/error.h"
#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/pointwise/rmsnorm.h"
#include "model/config_keys.h"
#include "model/config_rope.h"
#include "model/family.h"

namespace nvllm::model {
namespace {

// More than any model has, and small enough that no product of two overflows.
constexpr std::int64_t kMostFeatures = std::int64_t{1} << 24;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 31;

std::string known_architectures() {
  std::string names;
  for (const Family* family : families()) {
    names += str(names.empty() ? "" : ", ", family->architecture);
  }
  return names;
}

const Family& read_family(const ConfigKeys& keys) {
  const std::vector<std::string> architectures = keys.texts("architectures");
  for (const std::string& name : architectures) {
    if (const Family* family = find_family(name)) return *family;
  }
  if (!architectures.empty()) {
    fail(keys.where(), ": architecture ", shown_text(architectures.front()),
         " is not supported; known are ", known_architectures());
  }
  const auto model_type = keys.optional_text("model_type");
  if (!model_type) keys.refuse("architectures", "missing; known are ", known_architectures());
  const Family* family = find_family_of_type(*model_type);
  if (family == nullptr) {
    keys.refuse("model_type", "not supported, and there is no \"architectures\"; known are ",
                known_architectures());
  }
  return *family;
}

// What would change the numbers, and is not computed here.
void refuse_unsupported(const ConfigKeys& keys, const Family& family) {
  if (keys.has("quantization_config")) {
    keys.refuse("quantization_config", "quantized checkpoints of this kind are not supported; use ",
                "bfloat16, float16 or float32 weights, or a GGUF file");
  }
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (keys.has(key) && keys.integers(key, {}) != std::vector<std::int64_t>{0}) {
      keys.refuse(key, "mixture of experts is not supported");
    }
  }
  for (const ConfigKeys& place : {keys, keys.rope()}) {
    if (place.optional_number("partial_rotary_factor", {}).value_or(1) != 1) {
      place.refuse("partial_rotary_factor", "RoPE over a part of a head is not supported");
    }
  }
  if (keys.has("sliding_window") && keys.flag("use_sliding_window", family.uses_sliding_window)) {
    const IntegerLimits any = {.least = 1};
    const bool always = family.uses_sliding_window;
    if (always || keys.integer("sliding_window", any) <
                      keys.integer("max_position_embeddings", {.least = 1})) {
      keys.refuse("sliding_window", "attention to a sliding window is not supported; for contexts ",
                  "that fit into it pass --hf-overrides '{\"sliding_window\": null}'");
    }
  }
  for (const std::string& type : keys.texts("layer_types")) {
    if (type != "full_attention") {
      keys.refuse("layer_types", "layers of type ", type, " are not supported");
    }
  }
}

void read_shape(const ConfigKeys& keys, ModelConfig& config) {
  config.hidden_size = keys.integer("hidden_size", {1, kernels::kRmsNormMaxColumns});
  config.intermediate_size = keys.integer("intermediate_size", {1, kMostFeatures});
  config.layers = keys.integer("num_hidden_layers", {1, 4096});
  config.heads = keys.integer("num_attention_heads", {1, 65536});
  config.kv_heads = keys.optional_integer("num_key_value_heads", {1, 65536}).value_or(config.heads);
  if (config.heads % config.kv_heads != 0) {
    keys.refuse("num_key_value_heads", "must divide num_attention_heads, which is ", config.heads);
  }
  if (const auto head_dim = keys.optional_integer("head_dim", {1, kernels::kMaxHeadDim})) {
    config.head_dim = *head_dim;
  } else if (config.hidden_size % config.heads == 0) {
    config.head_dim = config.hidden_size / config.heads;
  } else {
    keys.refuse("hidden_size", "no multiple of num_attention_heads, which is ", config.heads,
                ", and there is no head_dim");
  }
  if (config.head_dim % 8 != 0 || config.head_dim > kernels::kMaxHeadDim) {
    keys.refuse(keys.has("head_dim") ? "head_dim" : "hidden_size", "gives heads of ",
                config.head_dim, " elements; they must have a multiple of 8, at most ",
                kernels::kMaxHeadDim);
  }
  config.vocab_size = keys.integer("vocab_size", {1, kMostFeatures});
  config.max_position_embeddings = keys.integer("max_position_embeddings", {1, kMostPositions});
}

kernels::Activation read_activation(const ConfigKeys& keys) {
  using kernels::Activation;
  const std::string name = keys.optional_text("hidden_act").value_or("silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  keys.refuse("hidden_act", "not supported; known are silu, gelu and gelu_pytorch_tanh");
}

DType read_dtype(const ConfigKeys& keys) {
  const char* key = keys.has("dtype") ? "dtype" : "torch_dtype";
  std::string name = keys.optional_text(key).value_or("bfloat16");
  if (name.starts_with("torch.")) name.erase(0, 6);
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    if (name == name_of(type)) return type;
  }
  keys.refuse(key, "not supported; known are bfloat16, float16 and float32");
}

}  // namespace

ModelConfig parse_config(std::string_view text, std::string_view overrides,
                         const std::string& where) {
  const ConfigKeys keys = ConfigKeys::parse(text, overrides, where);
  const Family& family = read_family(keys);
  refuse_unsupported(keys, family);

  ModelConfig config;
  config.architecture = family.architecture;
  config.names = family.names;
  read_shape(keys, config);
  config.rms_norm_eps =
      static_cast<float>(keys.optional_number("rms_norm_eps", {1e-20, 1}).value_or(1e-6));
  config.activation = read_activation(keys);
  config.tied_embeddings = keys.flag("tie_word_embeddings", family.tied_embeddings);
  config.rope = read_rope(keys, config.max_position_embeddings);
  config.dtype = read_dtype(keys);
  config.initializer_range =
      static_cast<float>(keys.optional_number("initializer_range", {0, 100}).value_or(0.02));
  config.bos_token_id = keys.optional_integer("bos_token_id", {0, kMostFeatures});
  config.eos_token_ids = keys.integers("eos_token_id", {0, kMostFeatures});
  family.read(keys, config);
  return config;
}

void check_overrides(std::string_view overrides) {
  ConfigKeys::parse("{}", overrides, "");
}

}  // namespace nvllm::model
