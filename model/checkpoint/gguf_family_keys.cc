// What configurations made of GGUF files have beside the keys of all families.
#include <cmath>
#include <limits>

#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf_config.h"
#include "model/checkpoint/gguf_family.h"

namespace nvllm::model {
namespace {

// A part of a whole, rounded so that times the whole it is not below the part.
double part_of(std::int64_t part, std::int64_t whole) {
  const double ratio = static_cast<double>(part) / static_cast<double>(whole);
  if (ratio * static_cast<double>(whole) >= static_cast<double>(part)) return ratio;
  return std::nextafter(ratio, std::numeric_limits<double>::infinity());
}

// Adds the layers with linear attention: from a list, or all but every n-th.
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

// A number for each layer: a list, or the same for all.
std::vector<std::int64_t> by_layer(const GgufKeys& keys, std::string_view name) {
  const std::int64_t layers = keys.size(".block_count");
  if (layers > static_cast<std::int64_t>(kGgufLayers)) {
    keys.fail_value(".block_count", str("at most ", kGgufLayers), layers);
  }
  const auto count = static_cast<std::size_t>(layers);
  if (!keys.metadata.has_array(keys.key(name))) {
    return std::vector<std::int64_t>(count, keys.size(name));
  }
  const std::vector<double> list = *keys.metadata.numbers(keys.key(name));
  if (list.size() != count) {
    keys.fail_value(name, str("a list of ", layers, " layers"), str("one of ", list.size()));
  }
  std::vector<std::int64_t> numbers;
  for (const double number : list) {
    if (!(number >= 0 && number <= 1 << 24) || number != std::floor(number)) {
      keys.fail_value(name, "whole numbers from 0 to 16777216", number);
    }
    numbers.push_back(static_cast<std::int64_t>(number));
  }
  return numbers;
}

// The number that all layers of a kind have; 0: there is no such layer.
std::int64_t of_kind(const GgufKeys& keys, std::string_view name,
                     const std::vector<std::int64_t>& numbers, const std::vector<bool>& of_it) {
  std::int64_t found = 0;
  for (std::size_t layer = 0; layer < numbers.size(); ++layer) {
    if (!of_it[layer]) continue;
    if (found != 0 && numbers[layer] != found) {
      keys.fail_value(name, "one number for all layers of a kind",
                      str(found, " and ", numbers[layer]));
    }
    found = numbers[layer];
  }
  return found;
}

// Which layers of a Gemma 4 have a window.
std::vector<bool> add_kinds_of_layers(const GgufKeys& keys, GgufConfig& config) {
  constexpr const char* kKey = ".attention.sliding_window_pattern";
  if (!keys.metadata.has_array(keys.key(kKey))) {
    fail(keys.metadata.where(), ": metadata ", keys.key(kKey),
         ": expected a list of all layers, found none");
  }
  std::vector<bool> local;
  config["layer_types"] = GgufConfig::array();
  for (const std::int64_t is_local : by_layer(keys, kKey)) {
    local.push_back(is_local != 0);
    config["layer_types"].push_back(is_local != 0 ? "sliding_attention" : "full_attention");
  }
  return local;
}

void expect_size(const GgufKeys& keys, std::string_view name, std::int64_t expected) {
  const std::int64_t found = keys.integer(name).value_or(expected);
  if (found != expected) keys.fail_value(name, str("the head size ", expected), found);
}

// Heads of both kinds of layers. Values are keys where layers without a window have no v.
void add_gemma4_heads(const GgufKeys& keys, const std::vector<bool>& local, GgufConfig& config) {
  constexpr const char* kKvHeads = ".attention.head_count_kv";
  const std::int64_t head_dim = keys.size(".attention.key_length_swa");
  const std::int64_t global_dim = keys.size(".attention.key_length");
  expect_size(keys, ".attention.value_length", global_dim);
  expect_size(keys, ".attention.value_length_swa", head_dim);
  expect_size(keys, ".rope.dimension_count", global_dim);
  expect_size(keys, ".rope.dimension_count_swa", head_dim);
  config["global_head_dim"] = global_dim;
  std::vector<bool> global = local;
  global.flip();
  const std::vector<std::int64_t> heads = by_layer(keys, kKvHeads);
  const std::int64_t of_local = of_kind(keys, kKvHeads, heads, local);
  const std::int64_t of_global = of_kind(keys, kKvHeads, heads, global);
  config["num_key_value_heads"] = of_local != 0 ? of_local : of_global;
  bool has_k = false, has_v = false;
  for (std::size_t layer = 0; layer < local.size(); ++layer) {
    if (local[layer]) continue;
    has_k |= keys.tensor(str("blk.", layer, ".attn_k.weight")) != nullptr;
    has_v |= keys.tensor(str("blk.", layer, ".attn_v.weight")) != nullptr;
  }
  config["attention_k_eq_v"] = has_k && !has_v;
  if (has_k && !has_v) {
    config["num_global_key_value_heads"] = of_global;
  } else if (of_local != 0 && of_global != 0 && of_local != of_global) {
    keys.fail_value(kKvHeads, "one number for all layers, which have values of their own",
                    str(of_local, " and ", of_global));
  }
}

// The MLPs of layers that read the keys and values of others may be twice as wide.
void add_gemma4_mlp(const GgufKeys& keys, GgufConfig& config) {
  constexpr const char* kWidths = ".feed_forward_length";
  const std::vector<std::int64_t> widths = by_layer(keys, kWidths);
  const std::int64_t shared = keys.integer(".attention.shared_kv_layers").value_or(0);
  if (shared < 0 || shared >= std::ssize(widths)) {
    keys.fail_value(".attention.shared_kv_layers", "a number below that of layers", shared);
  }
  const std::size_t own = widths.size() - static_cast<std::size_t>(shared);
  std::vector<bool> first(widths.size());
  std::fill_n(first.begin(), own, true);
  const std::int64_t width = of_kind(keys, kWidths, widths, first);
  first.flip();
  const std::int64_t of_shared = of_kind(keys, kWidths, widths, first);
  const bool wide = shared > 0 && of_shared == 2 * width;
  if (shared > 0 && !wide && of_shared != width) {
    keys.fail_value(kWidths, str(width, " or twice that in layers that share keys and values"),
                    of_shared);
  }
  config["intermediate_size"] = width;
  config["num_kv_shared_layers"] = shared;
  config["use_double_wide_mlp"] = wide;
}

// The first frequencies are as they are, the others turn so slowly that they stand still.
double rotated_part(const GgufKeys& keys, std::span<const float> factors, std::int64_t head_dim) {
  constexpr float kStill = 1e30f;
  const auto rotated = std::ranges::find_if(factors, [](float factor) { return factor != 1; });
  const bool fits = std::ssize(factors) == head_dim / 2 &&
                    std::all_of(rotated, factors.end(), [](float f) { return f == kStill; });
  if (!fits) {
    fail(keys.metadata.where(), ": tensor rope_freqs.weight: expected ", head_dim / 2,
         " factors, first of 1, then of 1e30, found ",
         factors.empty() ? "none" : str("others, of ", factors.size()));
  }
  return part_of(rotated - factors.begin(), head_dim / 2);
}

}  // namespace

void add_gemma4_keys(const GgufKeys& keys, std::span<const float> rope_factors,
                     GgufConfig& config) {
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config.erase("hidden_act");
  const std::vector<bool> local = add_kinds_of_layers(keys, config);
  add_gemma4_heads(keys, local, config);
  add_gemma4_mlp(keys, config);
  config["sliding_window"] = keys.size(".attention.sliding_window");
  const std::int64_t width = keys.integer(".embedding_length_per_layer_input").value_or(0);
  config["hidden_size_per_layer_input"] = width;
  const double cap = keys.number(".final_logit_softcapping").value_or(0);
  if (cap != 0) config["final_logit_softcapping"] = cap;
  const std::string scaling = keys.metadata.text(keys.key(".rope.scaling.type")).value_or("none");
  if (scaling != "none") keys.fail_value(".rope.scaling.type", "none", printable(scaling));
  const double theta = keys.number(".rope.freq_base").value_or(10000);
  GgufConfig& rope = config["rope_parameters"];
  rope["full_attention"] = {
      {"rope_type", "proportional"},
      {"rope_theta", theta},
      {"partial_rotary_factor",
       rotated_part(keys, rope_factors, config["global_head_dim"].get<std::int64_t>())}};
  rope["sliding_attention"] = {{"rope_type", "default"},
                               {"rope_theta", keys.number(".rope.freq_base_swa").value_or(theta)}};
}

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
  config["partial_rotary_factor"] = part_of(rotary, head_dim);
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
