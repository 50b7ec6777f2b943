#include "model/checkpoint/gguf_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/json_text.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf_family.h"

namespace nvllm::model {
namespace {

// Keeps the order of insertion, in which people expect to read the keys.
using Json = nlohmann::ordered_json;
using Kind = GgufFamily::Kind;

// Keys (after the architecture's name) that change what is computed, unless they are 0.
constexpr const char* kRefusedUnlessZero[] = {".expert_shared_count",
                                              ".expert_shared_feed_forward_length",
                                              ".expert_group_count",
                                              ".attention.clamp_kqv",
                                              ".attention.max_alibi_bias",
                                              ".attention.scale",
                                              ".logit_scale",
                                              ".embedding_scale",
                                              ".residual_scale",
                                              ".final_logit_softcapping",
                                              ".attn_logit_softcapping",
                                              ".rope.scaling.yarn_log_multiplier"};

// 7 of "blk.7" + module.
std::optional<std::int64_t> layer_of(const StoredTensor& tensor, std::string_view module) {
  constexpr std::string_view kPrefix = "blk.";
  std::string_view name = tensor.stored_name;
  if (!name.starts_with(kPrefix) || !name.ends_with(module)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.begin(), name.end(), layer);
  if (error != std::errc() || std::string_view(end, name.end()) != module) return std::nullopt;
  return layer;
}

// Makes the config.json of one model. Its metadata have the architecture's name as a prefix.
class ConfigMaker {
 public:
  ConfigMaker(const GgufHeader& header, std::span<const float> rope_factors)
      : header_(header),
        metadata_(header.metadata),
        family_(gguf_family(metadata_)),
        rope_factors_(rope_factors) {}

  std::string make() const {
    refuse_unknown();
    Json config;
    config["architectures"] = Json::array({family_.class_name});
    config["model_type"] = family_.model_type;
    add_shapes(config);
    if (family_.has_experts()) add_experts(config);
    add_rope(config);
    if (family_.kind == Kind::gemma3) add_gemma(config);
    if (family_.kind == Kind::gpt_oss) add_gpt_oss(config);
    add_tokens(config);
    return json_text(config, 2);
  }

 private:
  std::string key(std::string_view name) const { return str(family_.architecture, name); }

  std::int64_t size(std::string_view name) const {
    const std::int64_t value = metadata_.required_integer(key(name));
    if (value <= 0) fail_value(name, "a number above 0", value);
    return value;
  }

  template <typename T>
  [[noreturn]] void fail_value(std::string_view name, std::string_view expected,
                               const T& found) const {
    fail(metadata_.where(), ": metadata ", key(name), ": expected ", expected, ", found ", found);
  }

  const StoredTensor* tensor(std::string_view name) const {
    const auto found = std::ranges::find(header_.tensors, name, &StoredTensor::stored_name);
    return found == header_.tensors.end() ? nullptr : &*found;
  }

  void refuse_unknown() const {
    for (const char* const name : kRefusedUnlessZero) {
      const auto value = metadata_.number(key(name));
      if (value && *value != 0) fail_value(name, "none, or 0", *value);
    }
    const std::int64_t experts = metadata_.integer(key(".expert_count")).value_or(0);
    if (!family_.has_experts() && experts != 0) fail_value(".expert_count", "none, or 0", experts);
    if (family_.kind == Kind::gemma3 || family_.kind == Kind::gpt_oss) return;
    const auto window = metadata_.integer(key(".attention.sliding_window"));
    if (window && *window > 0 && *window < size(".context_length")) {
      fail_value(".attention.sliding_window", "none, or 0", *window);
    }
  }

  std::int64_t head_dim() const {
    const std::int64_t heads = size(".attention.head_count");
    const std::int64_t dim =
        metadata_.integer(key(".attention.key_length")).value_or(size(".embedding_length") / heads);
    const auto expect = [&](std::string_view name) {
      const std::int64_t found = metadata_.integer(key(name)).value_or(dim);
      if (found != dim) fail_value(name, str("the head size ", dim), found);
    };
    if (dim <= 0) fail_value(".attention.key_length", "a number above 0", dim);
    expect(".attention.value_length");
    expect(".rope.dimension_count");
    return dim;
  }

  void add_shapes(Json& config) const {
    const StoredTensor* const embedding = tensor("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      fail(metadata_.where(), ": tensor token_embd.weight: expected [vocabulary, ",
           size(".embedding_length"), "], found ",
           embedding == nullptr ? "none" : shape_text(embedding->shape));
    }
    config["hidden_size"] = size(".embedding_length");
    if (family_.kind != Kind::gpt_oss) {
      config["intermediate_size"] = size(".feed_forward_length");
    }
    config["num_hidden_layers"] = size(".block_count");
    config["num_attention_heads"] = size(".attention.head_count");
    config["num_key_value_heads"] = gguf_heads(metadata_).kv_heads;
    config["head_dim"] = head_dim();
    config["vocab_size"] = embedding->shape[0];
    config["max_position_embeddings"] = size(".context_length");
    config["rms_norm_eps"] = metadata_.required_number(key(".attention.layer_norm_rms_epsilon"));
    config["hidden_act"] = "silu";
    config["tie_word_embeddings"] = tensor("output.weight") == nullptr;
    if (!family_.always_biased) config["attention_bias"] = tensor("blk.0.attn_q.bias") != nullptr;
    if (family_.permuted && !family_.has_experts()) {
      config["mlp_bias"] = tensor("blk.0.ffn_gate.bias") != nullptr;
    }
    const bool f32 = embedding->encoding == Encoding::f32;
    const bool f16 = embedding->encoding == Encoding::f16;
    config["torch_dtype"] = f32 ? "float32" : f16 ? "float16" : "bfloat16";
  }

  // How many experts there are, how many a token goes through, and what their size is. That the
  // chosen ones' probabilities are divided by their sum is said by no file: llama.cpp always does.
  void add_experts(Json& config) const {
    const std::int64_t experts = size(".expert_count"), used = size(".expert_used_count");
    if (used > experts) {
      fail_value(".expert_used_count", str("at most ", experts, ", the number of experts"), used);
    }
    const double scale = metadata_.number(key(".expert_weights_scale")).value_or(1);
    if (scale != 1 && scale != 0) fail_value(".expert_weights_scale", "none, 0 or 1", scale);
    constexpr std::int64_t kSoftmax = 1;
    const std::int64_t gating = metadata_.integer(key(".expert_gating_func")).value_or(kSoftmax);
    if (gating != kSoftmax) fail_value(".expert_gating_func", "none, or 1 (softmax)", gating);
    const bool normed = metadata_.flag(key(".expert_weights_norm")).value_or(true);
    config["num_experts_per_tok"] = used;
    if (family_.kind == Kind::qwen3_moe) {
      config["num_experts"] = experts;
      config["norm_topk_prob"] = normed;
      const std::int64_t own = metadata_.integer(key(".expert_feed_forward_length")).value_or(0);
      config["moe_intermediate_size"] = own != 0 ? own : size(".feed_forward_length") / used;
      config["mlp_only_layers"] = layers_without_router();
      return;
    }
    config["num_local_experts"] = experts;
    if (!normed) fail_value(".expert_weights_norm", "none, or true", "false");
    if (family_.kind == Kind::mixtral && tensor("blk.0.attn_q.bias") != nullptr) {
      fail(metadata_.where(), ": tensor blk.0.attn_q.bias: a llama with experts has none");
    }
  }

  // Those that have an MLP instead of experts.
  std::set<std::int64_t> layers_without_router() const {
    std::set<std::int64_t> layers;
    for (const StoredTensor& tensor : header_.tensors) {
      if (const auto layer = layer_of(tensor, ".ffn_gate.weight")) layers.insert(*layer);
    }
    for (const StoredTensor& tensor : header_.tensors) {
      if (const auto layer = layer_of(tensor, ".ffn_gate_inp.weight")) layers.erase(*layer);
    }
    return layers;
  }

  // Windows are in every other layer from the first on, unless a file says otherwise. Files do not
  // say that the ends of YaRN's ramp are not rounded, nor where the activation is clamped: at 7, as
  // in all models of this class.
  void add_gpt_oss(Json& config) const {
    config["intermediate_size"] = size(".expert_feed_forward_length");
    config["sliding_window"] = size(".attention.sliding_window");
    const auto period = metadata_.integer(key(".attention.sliding_window_pattern")).value_or(2);
    if (period != 2) fail_value(".attention.sliding_window_pattern", "none, or 2", period);
    const auto local = metadata_.number(key(".rope.freq_base_swa"));
    if (local && *local != config["rope_theta"]) {
      fail_value(".rope.freq_base_swa", "none, or that of all layers", *local);
    }
    if (config.contains("rope_scaling") && config["rope_scaling"]["rope_type"] == "yarn") {
      config["rope_scaling"]["truncate"] = false;
    }
  }

  // What the files do not say is as llama.cpp has it.
  void add_gemma(Json& config) const {
    constexpr std::int64_t kLayersOf27b = 62;  // which alone scales by another size than its heads'
    const bool of_27b = size(".block_count") == kLayersOf27b;
    config["query_pre_attn_scalar"] =
        of_27b ? size(".embedding_length") / size(".attention.head_count") : head_dim();
    config["hidden_act"] = "gelu_pytorch_tanh";
    config["norm_weight_offset"] = 0;  // the 1 is in the files' weights
    config["sliding_window"] = size(".attention.sliding_window");
    config["rope_local_base_freq"] = metadata_.number(key(".rope.freq_base_swa")).value_or(10000);
  }

  // Old files have the factor under another key, and no scaling type.
  std::optional<double> factor_if_any() const {
    const auto value = metadata_.number(key(".rope.scaling.factor"));
    return value ? value : metadata_.number(key(".rope.scale_linear"));
  }

  double factor() const {
    const auto value = factor_if_any();
    if (!value) return metadata_.required_number(key(".rope.scaling.factor"));
    if (!(*value > 0)) fail_value(".rope.scaling.factor", "a number above 0", *value);
    return *value;
  }

  std::string scaling_type() const {
    if (const auto type = metadata_.text(key(".rope.scaling.type"))) return *type;
    return factor_if_any().value_or(1) == 1 ? "none" : "linear";
  }

  Json linear() const { return {{"rope_type", "linear"}, {"factor", factor()}}; }

  Json yarn() const {
    Json scaling{{"rope_type", "yarn"}, {"factor", factor()}};
    const auto set = [&](const char* name, const auto& value) {
      if (value) scaling[name] = *value;
    };
    set("original_max_position_embeddings",
        metadata_.integer(key(".rope.scaling.original_context_length")));
    set("beta_fast", metadata_.number(key(".rope.scaling.yarn_beta_fast")));
    set("beta_slow", metadata_.number(key(".rope.scaling.yarn_beta_slow")));
    // These factors multiply YaRN's own attention factor; config.json holds the result.
    double attention = 1;
    for (const char* const name : {".rope.scaling.attn_factor", ".rope.scaling.yarn_attn_factor"}) {
      attention *= metadata_.number(key(name)).value_or(1);
    }
    if (attention != 1) {
      scaling["attention_factor"] = attention * (1 + 0.1 * std::log(std::max(1.0, factor())));
    }
    const double ext = metadata_.number(key(".rope.scaling.yarn_ext_factor")).value_or(1);
    if (ext != 1) fail_value(".rope.scaling.yarn_ext_factor", "none, or 1", ext);
    return scaling;
  }

  Json llama3(double theta) const {
    const auto scaling = find_llama3_scaling(rope_factors_, theta);
    if (!scaling) {
      fail(metadata_.where(), ": tensor ", kRopeFactors,
           ": expected the factors of Llama 3's RoPE scaling, found others");
    }
    return {{"rope_type", "llama3"},
            {"factor", scaling->factor},
            {"low_freq_factor", scaling->low_freq_factor},
            {"high_freq_factor", scaling->high_freq_factor},
            {"original_max_position_embeddings", scaling->original_max_position_embeddings}};
  }

  void add_rope(Json& config) const {
    const double theta = metadata_.number(key(".rope.freq_base")).value_or(10000);
    if (!(theta > 1)) fail_value(".rope.freq_base", "a number above 1", theta);
    config["rope_theta"] = theta;
    const std::string type = scaling_type();
    const std::int64_t pairs = head_dim() / 2;
    if (!rope_factors_.empty()) {
      if (type != "none") {
        fail(metadata_.where(), ": both tensor ", kRopeFactors, " and RoPE scaling ",
             printable(type), "; expected one of them");
      }
      if (static_cast<std::int64_t>(rope_factors_.size()) != pairs) {
        fail(metadata_.where(), ": tensor ", kRopeFactors, ": expected shape [", pairs,
             "], found [", rope_factors_.size(), "]");
      }
      config["rope_scaling"] = llama3(theta);
    } else if (type == "linear") {
      config["rope_scaling"] = linear();
    } else if (type == "yarn") {
      config["rope_scaling"] = yarn();
    } else if (type != "none") {
      fail_value(".rope.scaling.type", "none, linear or yarn", printable(type));
    }
  }

  void add_tokens(Json& config) const {
    if (const auto id = metadata_.integer("tokenizer.ggml.bos_token_id")) {
      config["bos_token_id"] = *id;
    }
    std::vector<std::int64_t> ends;
    for (const char* const name : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
      const auto id = metadata_.integer(name);
      if (id && std::ranges::find(ends, *id) == ends.end()) ends.push_back(*id);
    }
    if (family_.kind == Kind::gpt_oss) add_harmony_ends(ends);
    if (ends.size() == 1) config["eos_token_id"] = ends.front();
    if (ends.size() > 1) config["eos_token_id"] = ends;
  }

  // Files name one token that ends an answer; generation_config.json of the models has these, too.
  void add_harmony_ends(std::vector<std::int64_t>& ends) const {
    const auto tokens = metadata_.texts("tokenizer.ggml.tokens");
    if (!tokens) return;
    for (const std::string_view end : {"<|endoftext|>", "<|call|>"}) {
      const std::int64_t id = std::ranges::find(*tokens, end) - tokens->begin();
      const bool is_there = id < std::ssize(*tokens);
      if (is_there && std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
    }
  }

  const GgufHeader& header_;
  const GgufMetadata& metadata_;
  const GgufFamily& family_;
  std::span<const float> rope_factors_;
};

}  // namespace

GgufHeads gguf_heads(const GgufMetadata& metadata) {
  const GgufFamily& family = gguf_family(metadata);
  const std::string key = std::string(family.architecture) + ".attention.head_count";
  GgufHeads heads;
  heads.permuted = family.permuted;
  heads.heads = metadata.required_integer(key);
  heads.kv_heads = metadata.integer(key + "_kv").value_or(heads.heads);
  if (heads.heads <= 0 || heads.kv_heads <= 0) {
    fail(metadata.where(), ": metadata ", key, " and ", key,
         "_kv: expected numbers above 0, found ", heads.heads, " and ", heads.kv_heads);
  }
  return heads;
}

std::string gguf_config_json(const GgufHeader& header, std::span<const float> rope_factors) {
  return ConfigMaker(header, rope_factors).make();
}

}  // namespace nvllm::model
