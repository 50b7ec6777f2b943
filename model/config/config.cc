#include "model/config/config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/pointwise/rmsnorm.h"
#include "model/config/config_keys.h"
#include "model/families/family.h"

namespace nvllm::model {
namespace {

// More than any model has, and small enough that multiplying two of them cannot overflow.
constexpr std::int64_t kMaxFeatures = std::int64_t{1} << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

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
    fail(keys.where(), ": architecture ", quoted_text(architectures.front()),
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

void refuse_partial_rope(const ConfigKeys& keys, const Family& family) {
  if (family.partial_rope) return;
  if (keys.optional_number("partial_rotary_factor", {}).value_or(1) != 1) {
    keys.refuse("partial_rotary_factor", "RoPE over a part of a head is not supported");
  }
}

// Refuses what would change the numbers and is not computed here.
void refuse_unsupported(const ConfigKeys& keys, const Family& family) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!family.has_experts && keys.has(key) &&
        keys.integers(key, {}) != std::vector<std::int64_t>{0}) {
      keys.refuse(key, "a ", family.architecture, " with a mixture of experts is not supported");
    }
  }
  refuse_partial_rope(keys, family);
  // Qwen2.5-1M: keeps the distances of far tokens within those of training.
  if (keys.has("dual_chunk_attention_config")) {
    keys.refuse("dual_chunk_attention_config",
                "dual chunk attention is not supported; for full attention, in contexts as long as "
                "those of training, pass --hf-overrides '{\"dual_chunk_attention_config\": null}'");
  }
}

// Which layers have a window, by the list of their types.
std::vector<bool> windowed_layers(const ConfigKeys& keys, const std::vector<std::string>& types,
                                  const Family& family, std::int64_t layers) {
  std::vector<bool> windowed;
  for (const std::string& type : types) {
    windowed.push_back(type == "sliding_attention" && family.window != Family::Window::none);
    const bool linear = type == "linear_attention" && family.linear_attention;
    if (type != "full_attention" && !linear && !windowed.back()) {
      keys.refuse("layer_types", "layers of type ", quoted_text(type), " are not supported");
    }
  }
  if (std::ssize(windowed) != layers) {
    keys.refuse("layer_types", "has ", windowed.size(), " types, for num_hidden_layers ", layers);
  }
  return windowed;
}

// The same where nothing but the family says it.
std::vector<bool> windowed_layers(const ConfigKeys& keys, const Family& family,
                                  std::int64_t layers) {
  constexpr std::int64_t kMaxWindowLayers = 28, kPattern = 6;  // transformers' defaults
  std::int64_t first = 0, pattern = layers + 1;
  if (family.window == Family::Window::upper_layers) {
    first =
        keys.optional_integer("max_window_layers", {0, kMaxFeatures}).value_or(kMaxWindowLayers);
  } else if (family.window == Family::Window::even_layers) {
    pattern = 2;
  } else if (family.window == Family::Window::pattern) {
    // transformers writes it with the underscore.
    const char* const key =
        keys.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
    pattern = keys.optional_integer(key, {1, kMaxFeatures}).value_or(kPattern);
  }
  std::vector<bool> windowed;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    windowed.push_back(layer >= first && (layer + 1) % pattern != 0);
  }
  return windowed;
}

// Windows as long as the longest context are none, but the layers keep their RoPE.
void read_windows(const ConfigKeys& keys, const Family& family, ModelConfig& config) {
  using Window = Family::Window;
  const bool usual = family.window != Window::none && family.window != Window::upper_layers;
  const bool used = keys.flag("use_sliding_window", usual);
  const auto length = keys.optional_integer("sliding_window", {1, kMaxPositions});
  const std::vector<std::string> types = keys.texts("layer_types");
  std::vector<bool> windowed;
  if (!types.empty()) {
    windowed = windowed_layers(keys, types, family, config.layers);
  } else if (used && length) {
    if (family.window == Window::none) {
      keys.refuse("sliding_window", "a ", family.architecture, " with a window is not supported");
    }
    windowed = windowed_layers(keys, family, config.layers);
  }
  if (std::ranges::find(windowed, true) == windowed.end()) {
    config.local_rope.reset();
    return;
  }
  if (!used || !length) {
    keys.refuse("sliding_window", used ? "missing" : "not in use",
                ", though \"layer_types\" names layers of sliding_attention");
  }
  if (config.local_rope) config.local_layers = windowed;
  if (*length >= config.max_model_len()) return;
  for (const bool has_window : windowed) config.windows.push_back(has_window ? *length : 0);
}

void read_shape(const ConfigKeys& keys, ModelConfig& config) {
  config.hidden_size = keys.integer("hidden_size", {1, kernels::kRmsNormMaxColumns});
  config.intermediate_size = keys.integer("intermediate_size", {1, kMaxFeatures});
  config.layers = keys.integer("num_hidden_layers", {1, kMaxLayers});
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
  config.vocab_size = keys.integer("vocab_size", {1, kMaxFeatures});
  config.max_position_embeddings = keys.integer("max_position_embeddings", {1, kMaxPositions});
}

kernels::Activation read_activation(const ConfigKeys& keys) {
  using kernels::Activation;
  const char* const key = keys.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name = keys.optional_text(key).value_or("silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  keys.refuse(key, "not supported; known are silu, gelu and gelu_pytorch_tanh");
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

using layers::RopeConfig;
using RopeType = RopeConfig::Type;

constexpr std::array<std::pair<std::string_view, RopeType>, 6> kRopeTypes = {{
    {"default", RopeType::standard},
    {"linear", RopeType::linear},
    {"dynamic", RopeType::dynamic},
    {"yarn", RopeType::yarn},
    {"llama3", RopeType::llama3},
    {"proportional", RopeType::proportional},
}};

// Scaling factors stretch the context; a larger one must be a typing error.
constexpr NumberLimits kFactor = {.min = 1, .max = 65536};
constexpr NumberLimits kTheta = {.min = 1, .max = 1e12};
constexpr IntegerLimits kPositions = {.min = 1, .max = std::int64_t{1} << 31};

RopeType read_rope_type(const ConfigKeys& rope) {
  const auto name = rope.optional_text("rope_type");
  if (!name) {
    if (rope.has("factor")) rope.refuse("rope_type", "missing, though there is a factor");
    return RopeType::standard;
  }
  for (const auto& [known, type] : kRopeTypes) {
    if (known == *name) return type;
  }
  rope.refuse("rope_type",
              "not supported; known are default, linear, dynamic, yarn, llama3 and proportional");
}

double read_factor(const ConfigKeys& rope, const RopeConfig& config) {
  if (config.type == RopeType::yarn && !rope.has("factor") &&
      config.original_max_position_embeddings) {
    const double ratio = static_cast<double>(config.max_position_embeddings) /
                         static_cast<double>(*config.original_max_position_embeddings);
    if (ratio >= 1) return ratio;
  }
  return rope.number("factor", kFactor);
}

void read_yarn(const ConfigKeys& rope, RopeConfig& config) {
  constexpr NumberLimits kScale = {.min = 0, .max = 1e4};
  constexpr NumberLimits kBeta = {.min = 1e-3, .max = 1e6};
  config.attention_factor = rope.optional_number("attention_factor", {.min = 1e-3, .max = 1e4});
  config.mscale = rope.optional_number("mscale", kScale);
  config.mscale_all_dim = rope.optional_number("mscale_all_dim", kScale);
  config.beta_fast = rope.optional_number("beta_fast", kBeta).value_or(config.beta_fast);
  config.beta_slow = rope.optional_number("beta_slow", kBeta).value_or(config.beta_slow);
  config.truncate = rope.flag("truncate", config.truncate);
  if (config.beta_fast < config.beta_slow) {
    rope.refuse("beta_fast", "must not be below beta_slow, which is ", config.beta_slow);
  }
}

void read_llama3(const ConfigKeys& rope, RopeConfig& config) {
  constexpr NumberLimits kFrequencyFactor = {.min = 1e-3, .max = 1e6};
  config.low_freq_factor = rope.number("low_freq_factor", kFrequencyFactor);
  config.high_freq_factor = rope.number("high_freq_factor", kFrequencyFactor);
  if (config.high_freq_factor <= config.low_freq_factor) {
    rope.refuse("high_freq_factor", "must be above low_freq_factor, which is ",
                config.low_freq_factor);
  }
  if (!config.original_max_position_embeddings) {
    rope.refuse("original_max_position_embeddings", "missing; rope_type llama3 needs it");
  }
}

// RoPE in which only a part of the frequencies rotates.
void read_proportional(const ConfigKeys& rope, const Family& family, RopeConfig& config) {
  if (family.partial_rope) {
    rope.refuse("rope_type", "a ", family.architecture, " rotates the first part of each head");
  }
  if (rope.optional_number("factor", kFactor).value_or(1) != 1) {
    rope.refuse("factor", "proportional RoPE that is scaled is not supported");
  }
  config.rotated = rope.optional_number("partial_rotary_factor", {.min = 0, .max = 1}).value_or(1);
}

// Reads RoPE's part of a config, and refuses types and keys that this program cannot compute.
RopeConfig read_rope(const ConfigKeys& rope, const Family& family, double theta,
                     std::int64_t max_position_embeddings) {
  RopeConfig config;
  config.type = read_rope_type(rope);
  if (config.type != RopeType::proportional) refuse_partial_rope(rope, family);
  config.max_position_embeddings = max_position_embeddings;
  config.theta = rope.optional_number("rope_theta", kTheta).value_or(theta);
  if (config.type == RopeType::standard) return config;
  if (config.type == RopeType::proportional) {
    read_proportional(rope, family, config);
    return config;
  }
  config.original_max_position_embeddings =
      rope.optional_integer("original_max_position_embeddings", kPositions);
  config.factor = read_factor(rope, config);
  if (config.type == RopeType::yarn) read_yarn(rope, config);
  if (config.type == RopeType::llama3) read_llama3(rope, config);
  return config;
}

// How much of a head is rotated; RoPE's own keys win.
std::int64_t read_rotary_dim(const ConfigKeys& keys, std::int64_t head_dim) {
  constexpr const char* kKey = "partial_rotary_factor";
  const ConfigKeys rope = keys.rope();
  const ConfigKeys& where = rope.has(kKey) ? rope : keys;
  const double factor = where.optional_number(kKey, {.min = 0, .max = 1}).value_or(1);
  const auto dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * factor);
  if (dim < 2 || dim % 2 != 0) {
    where.refuse(kKey, "rotates ", dim, " elements of each head of ", head_dim,
                 "; it must be an even number from 2 on");
  }
  return dim;
}

// The RoPE of all layers, or of both kinds: in separate objects, or only a theta for sliding-window
// layers.
void read_ropes(const ConfigKeys& keys, const Family& family, ModelConfig& config) {
  const ConfigKeys rope = keys.rope();
  const std::int64_t positions = config.max_position_embeddings;
  const char* const part = rope.has("full_attention") ? "full_attention" : "sliding_attention";
  if (rope.has(part)) {
    if (!family.local_rope) rope.refuse(part, "RoPE by kind of layer is not supported");
    const auto read_part = [&](const char* kind) {
      const ConfigKeys own = rope.rope_part(kind);
      return read_rope(own, family, own.number("rope_theta", kTheta), positions);
    };
    config.rope = read_part("full_attention");
    config.local_rope = read_part("sliding_attention");
    return;
  }
  config.rope = read_rope(rope, family, family.rope_theta, positions);
  if (!family.local_rope) return;
  RopeConfig& local = config.local_rope.emplace();
  local.theta = keys.optional_number("rope_local_base_freq", kTheta).value_or(1e4);
  local.max_position_embeddings = positions;
}

}  // namespace

std::int64_t ModelConfig::max_model_len() const {
  const bool stretched = rope.type == RopeType::linear || rope.type == RopeType::dynamic ||
                         rope.type == RopeType::yarn;
  if (!stretched) return max_position_embeddings;
  const auto original =
      static_cast<double>(rope.original_max_position_embeddings.value_or(max_position_embeddings));
  const double positions = std::min(original * rope.factor, static_cast<double>(kMaxPositions));
  return std::max(max_position_embeddings, static_cast<std::int64_t>(positions));
}

ModelConfig parse_config(std::string_view text, std::string_view overrides,
                         const std::string& where) {
  const ConfigKeys written = ConfigKeys::parse(text, overrides, where);
  const Family& family = read_family(written);
  const ConfigKeys keys = written.with_defaults(family.defaults);
  refuse_unsupported(keys, family);

  ModelConfig config;
  config.architecture = family.architecture;
  config.names = family.names;
  config.text_part = family.text_part;
  config.skips_mtp = family.skips_mtp;
  read_shape(keys, config);
  config.rms_norm_eps =
      static_cast<float>(keys.optional_number("rms_norm_eps", {1e-20, 1}).value_or(1e-6));
  config.activation = read_activation(keys);
  config.tied_embeddings = keys.flag("tie_word_embeddings", family.tied_embeddings);
  read_ropes(keys, family, config);
  if (family.partial_rope) config.partial_rotary_dim = read_rotary_dim(keys, config.head_dim);
  config.dtype = read_dtype(keys);
  config.initializer_range =
      static_cast<float>(keys.optional_number("initializer_range", {0, 100}).value_or(0.02));
  config.bos_token_id = keys.optional_integer("bos_token_id", {0, kMaxFeatures});
  config.eos_token_ids = keys.integers("eos_token_id", {0, kMaxFeatures});
  family.read(keys, config);
  read_windows(keys, family, config);
  return config;
}

void check_overrides(std::string_view overrides) {
  ConfigKeys::parse("{}", overrides, "");
}

}  // namespace nvllm::model
