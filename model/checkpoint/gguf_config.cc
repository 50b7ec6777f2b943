#include "model/checkpoint/gguf_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/json_text.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf_family.h"

namespace nvllm::model {
namespace {

using Kind = GgufFamily::Kind;

constexpr const char* kLogitCap = ".final_logit_softcapping";

// Keys (after the architecture's name) that change what is computed, unless they are 0.
constexpr const char* kRefusedUnlessZero[] = {".expert_shared_count",
                                              ".expert_group_count",
                                              ".attention.clamp_kqv",
                                              ".attention.max_alibi_bias",
                                              ".attention.scale",
                                              ".logit_scale",
                                              ".embedding_scale",
                                              ".residual_scale",
                                              kLogitCap,
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
class ConfigMaker : GgufKeys {
 public:
  ConfigMaker(const GgufHeader& header, std::span<const float> rope_factors)
      : GgufKeys(header), rope_factors_(rope_factors) {}

  std::string make() const {
    refuse_unknown();
    GgufConfig config;
    config["architectures"] = GgufConfig::array({family.class_name});
    config["model_type"] = family.model_type;
    add_shapes(config);
    if (family.has_experts()) add_experts(config);
    if (family.is_gemma4()) {
      add_gemma4_keys(*this, rope_factors_, config);
    } else {
      add_rope(config);
    }
    if (family.kind == Kind::gemma3) add_gemma3_keys(*this, head_dim(), config);
    if (family.kind == Kind::gpt_oss) add_gpt_oss_keys(*this, config);
    if (family.has_linear_attention()) add_linear_attention_keys(*this, head_dim(), config);
    add_tokens(config);
    return json_text(config, 2);
  }

 private:
  void refuse_unknown() const {
    for (const char* const name : kRefusedUnlessZero) {
      if (family.is_gemma4() && name == kLogitCap) continue;
      const auto value = metadata.number(key(name));
      if (value && *value != 0) fail_value(name, "none, or 0", *value);
    }
    constexpr const char* kShared = ".expert_shared_feed_forward_length";
    const std::int64_t shared = integer(kShared).value_or(0);
    if (shared != 0 && !family.has_linear_attention()) fail_value(kShared, "none, or 0", shared);
    const std::int64_t experts = metadata.integer(key(".expert_count")).value_or(0);
    if (!family.has_experts() && experts != 0) fail_value(".expert_count", "none, or 0", experts);
    if (family.kind == Kind::gemma3 || family.kind == Kind::gpt_oss || family.is_gemma4()) return;
    const auto window = metadata.integer(key(".attention.sliding_window"));
    if (window && *window > 0 && *window < size(".context_length")) {
      fail_value(".attention.sliding_window", "none, or 0", *window);
    }
  }

  // In Gemma 4 that of sliding-window layers.
  std::int64_t head_dim() const {
    if (family.is_gemma4()) return size(".attention.key_length_swa");
    const std::int64_t heads = size(".attention.head_count");
    const std::int64_t dim =
        metadata.integer(key(".attention.key_length")).value_or(size(".embedding_length") / heads);
    const auto expect = [&](std::string_view name) {
      const std::int64_t found = metadata.integer(key(name)).value_or(dim);
      if (found != dim) fail_value(name, str("the head size ", dim), found);
    };
    if (dim <= 0) fail_value(".attention.key_length", "a number above 0", dim);
    expect(".attention.value_length");
    if (!family.has_linear_attention()) expect(".rope.dimension_count");
    return dim;
  }

  void add_shapes(GgufConfig& config) const {
    const StoredTensor* const embedding = tensor("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      fail(metadata.where(), ": tensor token_embd.weight: expected [vocabulary, ",
           size(".embedding_length"), "], found ",
           embedding == nullptr ? "none" : shape_text(embedding->shape));
    }
    config["hidden_size"] = size(".embedding_length");
    // Where all layers have experts, there may be no MLP to have a size.
    const bool optional =
        family.has_linear_attention() && family.has_experts() && !integer(".feed_forward_length");
    if (family.kind != Kind::gpt_oss && !family.is_gemma4() && !optional) {
      config["intermediate_size"] = size(".feed_forward_length");
    }
    size(".block_count");
    config["num_hidden_layers"] = gguf_layers(metadata, family);
    config["num_attention_heads"] = size(".attention.head_count");
    config["num_key_value_heads"] = gguf_heads(metadata).kv_heads;
    config["head_dim"] = head_dim();
    config["vocab_size"] = embedding->shape[0];
    config["max_position_embeddings"] = size(".context_length");
    config["rms_norm_eps"] = metadata.required_number(key(".attention.layer_norm_rms_epsilon"));
    config["hidden_act"] = "silu";
    config["tie_word_embeddings"] = tensor("output.weight") == nullptr;
    if (!family.always_biased) config["attention_bias"] = in_some_layer(".attn_q.bias");
    if (family.permuted && !family.has_experts()) {
      config["mlp_bias"] = tensor("blk.0.ffn_gate.bias") != nullptr;
    }
    const bool f32 = embedding->encoding == Encoding::f32;
    const bool f16 = embedding->encoding == Encoding::f16;
    config["torch_dtype"] = f32 ? "float32" : f16 ? "float16" : "bfloat16";
  }

  // How many experts there are, how many a token goes through, and what their size is. That the
  // chosen ones' probabilities are divided by their sum is said by no file: llama.cpp always does.
  void add_experts(GgufConfig& config) const {
    const std::int64_t experts = size(".expert_count"), used = size(".expert_used_count");
    if (used > experts) {
      fail_value(".expert_used_count", str("at most ", experts, ", the number of experts"), used);
    }
    const double scale = metadata.number(key(".expert_weights_scale")).value_or(1);
    if (scale != 1 && scale != 0) fail_value(".expert_weights_scale", "none, 0 or 1", scale);
    constexpr std::int64_t kSoftmax = 1;
    const std::int64_t gating = metadata.integer(key(".expert_gating_func")).value_or(kSoftmax);
    if (gating != kSoftmax) fail_value(".expert_gating_func", "none, or 1 (softmax)", gating);
    const bool normed = metadata.flag(key(".expert_weights_norm")).value_or(true);
    if (family.is_gemma4()) {
      config["enable_moe_block"] = true;
      config["num_experts"] = experts;
      config["top_k_experts"] = used;
      config["moe_intermediate_size"] = size(".expert_feed_forward_length");
      if (!normed) fail_value(".expert_weights_norm", "none, or true", "false");
      return;
    }
    config["num_experts_per_tok"] = used;
    if (family.kind == Kind::qwen3_moe || family.has_linear_attention()) {
      config["num_experts"] = experts;
      config["norm_topk_prob"] = normed;
      const std::int64_t own = metadata.integer(key(".expert_feed_forward_length")).value_or(0);
      config["moe_intermediate_size"] = own != 0 ? own : size(".feed_forward_length") / used;
      config["mlp_only_layers"] = layers_without_router();
      return;
    }
    config["num_local_experts"] = experts;
    if (!normed) fail_value(".expert_weights_norm", "none, or true", "false");
    if (family.kind == Kind::mixtral && tensor("blk.0.attn_q.bias") != nullptr) {
      fail(metadata.where(), ": tensor blk.0.attn_q.bias: a llama with experts has none");
    }
  }

  // Those that have an MLP instead of experts.
  std::set<std::int64_t> layers_without_router() const {
    std::set<std::int64_t> layers;
    for (const StoredTensor& tensor : header.tensors) {
      if (const auto layer = layer_of(tensor, ".ffn_gate.weight")) layers.insert(*layer);
    }
    for (const StoredTensor& tensor : header.tensors) {
      if (const auto layer = layer_of(tensor, ".ffn_gate_inp.weight")) layers.erase(*layer);
    }
    return layers;
  }

  // Old files have the factor under another key, and no scaling type.
  std::optional<double> factor_if_any() const {
    const auto value = metadata.number(key(".rope.scaling.factor"));
    return value ? value : metadata.number(key(".rope.scale_linear"));
  }

  double factor() const {
    const auto value = factor_if_any();
    if (!value) return metadata.required_number(key(".rope.scaling.factor"));
    if (!(*value > 0)) fail_value(".rope.scaling.factor", "a number above 0", *value);
    return *value;
  }

  std::string scaling_type() const {
    if (const auto type = metadata.text(key(".rope.scaling.type"))) return *type;
    return factor_if_any().value_or(1) == 1 ? "none" : "linear";
  }

  GgufConfig linear() const { return {{"rope_type", "linear"}, {"factor", factor()}}; }

  GgufConfig yarn() const {
    GgufConfig scaling{{"rope_type", "yarn"}, {"factor", factor()}};
    const auto set = [&](const char* name, const auto& value) {
      if (value) scaling[name] = *value;
    };
    set("original_max_position_embeddings",
        metadata.integer(key(".rope.scaling.original_context_length")));
    set("beta_fast", metadata.number(key(".rope.scaling.yarn_beta_fast")));
    set("beta_slow", metadata.number(key(".rope.scaling.yarn_beta_slow")));
    // These factors multiply YaRN's own attention factor; config.json holds the result.
    double attention = 1;
    for (const char* const name : {".rope.scaling.attn_factor", ".rope.scaling.yarn_attn_factor"}) {
      attention *= metadata.number(key(name)).value_or(1);
    }
    if (attention != 1) {
      scaling["attention_factor"] = attention * (1 + 0.1 * std::log(std::max(1.0, factor())));
    }
    const double ext = metadata.number(key(".rope.scaling.yarn_ext_factor")).value_or(1);
    if (ext != 1) fail_value(".rope.scaling.yarn_ext_factor", "none, or 1", ext);
    return scaling;
  }

  GgufConfig llama3(double theta) const {
    const auto scaling = find_llama3_scaling(rope_factors_, theta);
    if (!scaling) {
      fail(metadata.where(), ": tensor ", kRopeFactors,
           ": expected the factors of Llama 3's RoPE scaling, found others");
    }
    return {{"rope_type", "llama3"},
            {"factor", scaling->factor},
            {"low_freq_factor", scaling->low_freq_factor},
            {"high_freq_factor", scaling->high_freq_factor},
            {"original_max_position_embeddings", scaling->original_max_position_embeddings}};
  }

  void add_rope(GgufConfig& config) const {
    const double theta = metadata.number(key(".rope.freq_base")).value_or(10000);
    if (!(theta > 1)) fail_value(".rope.freq_base", "a number above 1", theta);
    config["rope_theta"] = theta;
    const std::string type = scaling_type();
    const std::int64_t pairs =
        (family.has_linear_attention() ? gguf_rotary_dim(*this, head_dim()) : head_dim()) / 2;
    if (!rope_factors_.empty()) {
      if (type != "none") {
        fail(metadata.where(), ": both tensor ", kRopeFactors, " and RoPE scaling ",
             printable(type), "; expected one of them");
      }
      if (static_cast<std::int64_t>(rope_factors_.size()) != pairs) {
        fail(metadata.where(), ": tensor ", kRopeFactors, ": expected shape [", pairs, "], found [",
             rope_factors_.size(), "]");
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

  void add_tokens(GgufConfig& config) const {
    if (const auto id = metadata.integer("tokenizer.ggml.bos_token_id")) {
      config["bos_token_id"] = *id;
    }
    const std::vector<std::int64_t> ends = end_tokens();
    if (ends.size() == 1) config["eos_token_id"] = ends.front();
    if (ends.size() > 1) config["eos_token_id"] = ends;
  }

  // Files name one or two of the tokens that end an answer. The others are found by their texts, as
  // in llama.cpp; generation_config.json of the models has them, too.
  std::vector<std::int64_t> end_tokens() const {
    constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int64_t> ends;
    // Files contain -1 if there is no such token.
    const auto add = [&](std::optional<std::int64_t> id) {
      const bool valid = id && *id >= 0 && *id <= kMaxId;
      if (valid && std::ranges::find(ends, *id) == ends.end()) ends.push_back(*id);
    };
    for (const char* const name : {"eos", "eot", "eom"}) {
      add(metadata.integer(str("tokenizer.ggml.", name, "_token_id")));
    }
    constexpr const char* kList = "tokenizer.ggml.eos_token_ids";
    if (metadata.has_array(kList)) {
      const std::optional<std::vector<double>> ids = metadata.numbers(kList);
      for (const double id : *ids) {
        if (id >= 0 && id <= kMaxId) add(static_cast<std::int64_t>(id));
      }
    }
    for (const std::string_view text : end_texts()) {
      add(metadata.index_of("tokenizer.ggml.tokens", text));
    }
    return ends;
  }

  std::vector<std::string_view> end_texts() const {
    if (family.kind == Kind::gpt_oss) return {"<|endoftext|>", "<|call|>"};
    if (family.kind == Kind::gemma3) return {"<eos>", "<end_of_turn>"};
    if (family.is_gemma4()) return {"<eos>", "<turn|>", "<|tool_response>"};
    return {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>"};
  }

  std::span<const float> rope_factors_;
};

}  // namespace

std::string gguf_config_json(const GgufHeader& header, std::span<const float> rope_factors) {
  return ConfigMaker(header, rope_factors).make();
}

}  // namespace nvllm::model
