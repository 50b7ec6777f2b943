// What configurations made of GGUF files have beside the keys of all families.
#include <cmath>
#include <limits>

#include "model/checkpoint/gguf_heads.h"
#include "model/checkpoint/gguf_keys.h"

namespace nvllm::model {
namespace {

// Which layers have linear attention: by a list, or all but every so many-th.
void add_layer_types(const GgufKeys& keys, GgufConfig& config) {
  constexpr const char* kList = ".attention.recurrent_layers";
  if (!keys.metadata.has_array(keys.key(kList))) {
    if (keys.metadata.flag(keys.key(kList))) keys.fail_value(kList, "a list", "one for all layers");
    const std::int64_t interval = keys.integer(".full_attention_interval").value_or(4);
    if (interval <= 0) keys.fail_value(".full_attention_interval", "a number above 0", interval);
    config["full_attention_interval"] = interval;
    return;
  }
  const std::vector<double> linear = *keys.metadata.numbers(keys.key(kList));
  if (std::ssize(linear) != keys.size(".block_count")) {
    keys.fail_value(kList, str("a list of ", keys.size(".block_count"), " layers"),
                    str("one of ", linear.size()));
  }
  config["layer_types"] = GgufConfig::array();
  for (std::int64_t layer = 0; layer < config["num_hidden_layers"]; ++layer) {
    const bool is_linear = linear[static_cast<std::size_t>(layer)] != 0;
    config["layer_types"].push_back(is_linear ? "linear_attention" : "full_attention");
  }
}

// Sections say which frequencies turn with time, height and width of a picture: for text they are
// one, if they cover all.
void check_rope_sections(const GgufKeys& keys, std::int64_t frequencies) {
  constexpr const char* kKey = ".rope.dimension_sections";
  const auto sections = keys.metadata.numbers(keys.key(kKey));
  if (!sections) return;
  double sum = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(sections->size(), 3); ++i)
    sum += (*sections)[i];
  if (sum == static_cast<double>(frequencies)) return;
  keys.fail_value(kKey, str("sections of ", frequencies, " frequencies together"),
                  str("some of ", sum));
}

}  // namespace

// What the files do not say is as llama.cpp has it.
void add_gemma3_keys(const GgufKeys& keys, std::int64_t head_dim, GgufConfig& config) {
  constexpr std::int64_t kLayersOf27b = 62;  // which alone scales by another size than its heads'
  const bool of_27b = keys.size(".block_count") == kLayersOf27b;
  config["query_pre_attn_scalar"] =
      of_27b ? keys.size(".embedding_length") / keys.size(".attention.head_count") : head_dim;
  config["hidden_act"] = "gelu_pytorch_tanh";
  config["norm_weight_offset"] = 0;  // the 1 is in the files' weights
  config["sliding_window"] = keys.size(".attention.sliding_window");
  config["rope_local_base_freq"] = keys.number(".rope.freq_base_swa").value_or(10000);
}

// Windows are in every other layer from the first on, unless a file says otherwise. Files do not
// say that the ends of YaRN's ramp are not rounded, nor where the activation is clamped: at 7, as
// in all models of this class.
void add_gpt_oss_keys(const GgufKeys& keys, GgufConfig& config) {
  config["intermediate_size"] = keys.size(".expert_feed_forward_length");
  config["sliding_window"] = keys.size(".attention.sliding_window");
  const auto period = keys.integer(".attention.sliding_window_pattern").value_or(2);
  if (period != 2) keys.fail_value(".attention.sliding_window_pattern", "none, or 2", period);
  const auto local = keys.number(".rope.freq_base_swa");
  if (local && *local != config["rope_theta"]) {
    keys.fail_value(".rope.freq_base_swa", "none, or that of all layers", *local);
  }
  if (config.contains("rope_scaling") && config["rope_scaling"]["rope_type"] == "yarn") {
    config["rope_scaling"]["truncate"] = false;
  }
}

std::int64_t gguf_rotary_dim(const GgufKeys& keys, std::int64_t head_dim) {
  constexpr const char* kKey = ".rope.dimension_count";
  const std::int64_t dim = keys.integer(kKey).value_or(head_dim);
  if (dim < 2 || dim > head_dim || dim % 2 != 0) {
    keys.fail_value(kKey, str("an even number from 2 to the head size ", head_dim), dim);
  }
  return dim;
}

void add_linear_attention_keys(const GgufKeys& keys, std::int64_t head_dim, GgufConfig& config) {
  const GgufHeads heads = gguf_heads(keys.metadata);
  add_layer_types(keys, config);
  config["linear_num_key_heads"] = heads.key_heads;
  config["linear_num_value_heads"] = heads.value_heads;
  config["linear_key_head_dim"] = heads.key_dim;
  config["linear_value_head_dim"] = heads.value_dim;
  config["linear_conv_kernel_dim"] = keys.size(".ssm.conv_kernel");
  const std::int64_t rotary = gguf_rotary_dim(keys, head_dim);
  check_rope_sections(keys, rotary / 2);
  // Rounded up, so that times the head size it is not below the number.
  const double part = static_cast<double>(rotary) / static_cast<double>(head_dim);
  config["partial_rotary_factor"] =
      std::min(1.0, std::nextafter(part, std::numeric_limits<double>::infinity()));
  config["norm_weight_offset"] = 0;  // the 1 is in the files' weights
  if (keys.family.kind == GgufFamily::Kind::qwen3_next) {
    config["in_proj_qkvz_by_key_head"] = keys.in_some_layer(".ssm_in.weight");
  }
  if (!keys.family.has_experts()) return;
  const std::int64_t shared = keys.integer(".expert_shared_feed_forward_length").value_or(0);
  config["shared_expert_intermediate_size"] =
      shared != 0 ? shared : keys.size(".feed_forward_length");
}

}  // namespace nvllm::model
