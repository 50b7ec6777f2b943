#include "model/checkpoint/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "model/checkpoint/checkpoint_file.h"

namespace nvllm::model {
namespace {

// Keeps the order of insertion, in which people expect to read the keys.
using Json = nlohmann::ordered_json;

struct Family {
  const char* gguf;
  const char* class_name;
  const char* model_type;
  bool permuted;       // rows of q and k, see GgufHeads
  bool always_biased;  // q, k and v: the class says it, not the configuration
  bool gemma = false;  // what a block makes is normed, too, and layers with windows are local
};
// Mistral's files call themselves llama.
constexpr Family kFamilies[] = {{"llama", "LlamaForCausalLM", "llama", true, false},
                                {"qwen2", "Qwen2ForCausalLM", "qwen2", false, true},
                                {"qwen3", "Qwen3ForCausalLM", "qwen3", false, false},
                                {"gemma3", "Gemma3ForCausalLM", "gemma3_text", false, false, true}};

// Keys (after the architecture's name) that change what is computed, unless they are 0.
constexpr const char* kRefusedUnlessZero[] = {".expert_count",
                                              ".attention.clamp_kqv",
                                              ".attention.max_alibi_bias",
                                              ".attention.scale",
                                              ".logit_scale",
                                              ".embedding_scale",
                                              ".residual_scale",
                                              ".final_logit_softcapping",
                                              ".attn_logit_softcapping",
                                              ".rope.scaling.yarn_log_multiplier"};

const Family& family_of(const GgufMetadata& metadata) {
  const std::string name = metadata.required_text("general.architecture");
  const auto* const found =
      std::ranges::find_if(kFamilies, [&](const Family& family) { return name == family.gguf; });
  if (found == std::end(kFamilies)) {
    fail(metadata.where(), ": general.architecture: expected llama, qwen2, qwen3 or gemma3, found ",
         printable(name));
  }
  return *found;
}

// Makes the config.json of one model. Its metadata have the architecture's name as a prefix.
class ConfigMaker {
 public:
  ConfigMaker(const GgufHeader& header, std::span<const float> rope_factors)
      : header_(header),
        metadata_(header.metadata),
        family_(family_of(metadata_)),
        rope_factors_(rope_factors) {}

  std::string make() const {
    refuse_unknown();
    Json config;
    config["architectures"] = Json::array({family_.class_name});
    config["model_type"] = family_.model_type;
    add_shapes(config);
    add_rope(config);
    if (family_.gemma) add_gemma(config);
    add_tokens(config);
    return json_text(config, 2);
  }

 private:
  std::string key(std::string_view name) const { return str(family_.gguf, name); }

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
    if (family_.gemma) return;
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
    config["intermediate_size"] = size(".feed_forward_length");
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
    if (family_.permuted) config["mlp_bias"] = tensor("blk.0.ffn_gate.bias") != nullptr;
    const bool f32 = embedding->encoding == Encoding::f32;
    const bool f16 = embedding->encoding == Encoding::f16;
    config["torch_dtype"] = f32 ? "float32" : f16 ? "float16" : "bfloat16";
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
    if (ends.size() == 1) config["eos_token_id"] = ends.front();
    if (ends.size() > 1) config["eos_token_id"] = ends;
  }

  const GgufHeader& header_;
  const GgufMetadata& metadata_;
  const Family& family_;
  std::span<const float> rope_factors_;
};

using Pair = std::pair<std::string_view, std::string_view>;

constexpr Pair kWhole[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr Pair kOfLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

// Of Gemma's layers, where "ffn_norm" and "post_attention_layernorm" are other norms.
constexpr Pair kOfGemmaLayer[] = {{"post_attention_norm", "post_attention_layernorm"},
                                  {"ffn_norm", "pre_feedforward_layernorm"},
                                  {"post_ffw_norm", "post_feedforward_layernorm"}};

template <std::size_t n>
std::optional<std::string_view> look_up(const Pair (&names)[n], std::string_view stored) {
  const auto* const found = std::ranges::find(names, stored, &Pair::first);
  if (found == std::end(names)) return std::nullopt;
  return found->second;
}

// Takes "12." off the front of `text`. "012." is no layer, so that two names never mean the same.
std::optional<std::string_view> take_layer(std::string_view& text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 6) return std::nullopt;
  const std::string_view number = text.substr(0, dot);
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  if (number.size() > 1 && number.front() == '0') return std::nullopt;
  text.remove_prefix(dot + 1);
  return number;
}

}  // namespace

GgufHeads gguf_heads(const GgufMetadata& metadata) {
  const Family& family = family_of(metadata);
  const std::string key = std::string(family.gguf) + ".attention.head_count";
  GgufHeads heads;
  heads.permuted = family.permuted;
  heads.gemma = family.gemma;
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

std::optional<std::string> hugging_face_name(std::string_view stored, bool gemma) {
  const std::size_t dot = stored.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view ending = stored.substr(dot);
  if (ending != ".weight" && ending != ".bias") return std::nullopt;
  std::string_view module = stored.substr(0, dot);

  if (const auto name = look_up(kWhole, module)) return std::string(*name).append(ending);
  if (!module.starts_with("blk.")) return std::nullopt;
  module.remove_prefix(4);
  const auto layer = take_layer(module);
  if (!layer) return std::nullopt;
  std::optional<std::string_view> name;
  if (gemma) name = look_up(kOfGemmaLayer, module);
  if (!name) name = look_up(kOfLayer, module);
  if (!name) return std::nullopt;
  return std::string("model.layers.").append(*layer).append(".").append(*name).append(ending);
}

}  // namespace nvllm::model
