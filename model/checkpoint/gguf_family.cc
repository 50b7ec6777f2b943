#include "model/checkpoint/gguf_family.h"

#include <algorithm>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"

namespace nvllm::model {
namespace {

using Name = GgufFamily::Name;
using Kind = GgufFamily::Kind;

constexpr Name kWhole[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr Name kOfLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

// "ffn_norm" and "post_attention_layernorm" are other norms here.
constexpr Name kOfGemmaLayer[] = {{"post_attention_norm", "post_attention_layernorm"},
                                  {"ffn_norm", "pre_feedforward_layernorm"},
                                  {"post_ffw_norm", "post_feedforward_layernorm"}};

constexpr Name kOfGemma4Layer[] = {{"post_attention_norm", "post_attention_layernorm"},
                                   {"ffn_norm", "pre_feedforward_layernorm"},
                                   {"post_ffw_norm", "post_feedforward_layernorm"},
                                   {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                                   {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                                   {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                                   {"ffn_gate_inp", "router.proj"},
                                   {"ffn_gate_exps", "experts.*.gate_proj"},
                                   {"ffn_up_exps", "experts.*.up_proj"},
                                   {"ffn_gate_up_exps", "experts.*.gate_up_proj"},
                                   {"ffn_down_exps", "experts.*.down_proj"},
                                   {"inp_gate", "per_layer_input_gate"},
                                   {"proj", "per_layer_projection"},
                                   {"post_norm", "post_per_layer_input_norm"}};

constexpr Name kGemma4Tensors[] = {
    {"layer_output_scale.weight", "layer_scalar"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"}};

constexpr Name kOfMixtralLayer[] = {{"ffn_gate_inp", "block_sparse_moe.gate"},
                                    {"ffn_gate_exps", "block_sparse_moe.experts.*.w1"},
                                    {"ffn_up_exps", "block_sparse_moe.experts.*.w3"},
                                    {"ffn_down_exps", "block_sparse_moe.experts.*.w2"}};

constexpr Name kOfQwen3MoeLayer[] = {{"ffn_gate_inp", "mlp.gate"},
                                     {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
                                     {"ffn_up_exps", "mlp.experts.*.up_proj"},
                                     {"ffn_down_exps", "mlp.experts.*.down_proj"}};

constexpr Name kOfGptOssLayer[] = {{"ffn_gate_inp", "mlp.router"},
                                   {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
                                   {"ffn_up_exps", "mlp.experts.*.up_proj"},
                                   {"ffn_down_exps", "mlp.experts.*.down_proj"},
                                   {"post_attention_norm", "post_attention_layernorm"}};

constexpr Name kGptOssTensors[] = {{"attn_sinks.weight", "self_attn.sinks"}};

// Names in layers of Qwen3.5 and Qwen3-Next, with or without experts.
constexpr Name kOfHybridLayer[] = {{"post_attention_norm", "post_attention_layernorm"},
                                   {"attn_qkv", "linear_attn.in_proj_qkv"},
                                   {"attn_gate", "linear_attn.in_proj_z"},
                                   {"ssm_in", "linear_attn.in_proj_qkvz"},
                                   {"ssm_ba", "linear_attn.in_proj_ba"},
                                   {"ssm_beta", "linear_attn.in_proj_b"},
                                   {"ssm_alpha", "linear_attn.in_proj_a"},
                                   {"ssm_conv1d", "linear_attn.conv1d"},
                                   {"ssm_norm", "linear_attn.norm"},
                                   {"ssm_out", "linear_attn.out_proj"},
                                   {"ffn_gate_inp", "mlp.gate"},
                                   {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
                                   {"ffn_up_exps", "mlp.experts.*.up_proj"},
                                   {"ffn_gate_up_exps", "mlp.experts.*.gate_up_proj"},
                                   {"ffn_down_exps", "mlp.experts.*.down_proj"},
                                   {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                   {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                   {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                   {"ffn_down_shexp", "mlp.shared_expert.down_proj"}};

constexpr Name kHybridTensors[] = {{"ssm_a", "linear_attn.A_log"},
                                   {"ssm_dt.bias", "linear_attn.dt_bias"}};

// Mistral's files call themselves llama, and so do Mixtral's.
constexpr GgufFamily kFamilies[] = {
    {.architecture = "llama",
     .class_name = "LlamaForCausalLM",
     .model_type = "llama",
     .permuted = true},
    {.architecture = "llama",
     .class_name = "MixtralForCausalLM",
     .model_type = "mixtral",
     .kind = Kind::mixtral,
     .permuted = true,
     .names = kOfMixtralLayer},
    {.architecture = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .always_biased = true},
    {.architecture = "qwen3", .class_name = "Qwen3ForCausalLM", .model_type = "qwen3"},
    {.architecture = "qwen3moe",
     .class_name = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .kind = Kind::qwen3_moe,
     .names = kOfQwen3MoeLayer},
    {.architecture = "gemma3",
     .class_name = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .kind = Kind::gemma3,
     .names = kOfGemmaLayer},
    {.architecture = "gemma4",
     .class_name = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .kind = Kind::gemma4,
     .names = kOfGemma4Layer,
     .tensors = kGemma4Tensors},
    {.architecture = "gemma4",
     .class_name = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .kind = Kind::gemma4_moe,
     .names = kOfGemma4Layer,
     .tensors = kGemma4Tensors},
    {.architecture = "gpt-oss",
     .class_name = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .kind = Kind::gpt_oss,
     .names = kOfGptOssLayer,
     .tensors = kGptOssTensors},
    {.architecture = "qwen3next",
     .class_name = "Qwen3NextForCausalLM",
     .model_type = "qwen3_next",
     .kind = Kind::qwen3_next,
     .names = kOfHybridLayer,
     .tensors = kHybridTensors},
    {.architecture = "qwen35",
     .class_name = "Qwen3_5ForCausalLM",
     .model_type = "qwen3_5_text",
     .kind = Kind::qwen35,
     .names = kOfHybridLayer,
     .tensors = kHybridTensors},
    {.architecture = "qwen35moe",
     .class_name = "Qwen3_5MoeForCausalLM",
     .model_type = "qwen3_5_moe_text",
     .kind = Kind::qwen35_moe,
     .names = kOfHybridLayer,
     .tensors = kHybridTensors},
};

std::optional<std::string_view> look_up(std::span<const Name> names, std::string_view stored) {
  const auto found = std::ranges::find(names, stored, &Name::first);
  if (found == names.end()) return std::nullopt;
  return found->second;
}

// Removes "12" and a following dot from the front of `text`. "012" is not a number, so that two
// names never mean the same.
std::optional<std::string_view> take_number(std::string_view& text) {
  const std::string_view number = text.substr(0, text.find('.'));
  if (number.empty() || number.size() > 6) return std::nullopt;
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  if (number.size() > 1 && number.front() == '0') return std::nullopt;
  text.remove_prefix(std::min(number.size() + 1, text.size()));
  return number;
}

// "mlp.experts.7.up_proj" for "ffn_up.7": files of before April 2024 have a tensor for each expert.
std::optional<std::string> name_of_expert(std::string_view module, const GgufFamily& family) {
  const std::size_t dot = module.find('.');
  if (!family.has_experts() || dot == std::string_view::npos) return std::nullopt;
  const auto name = look_up(family.names, std::string(module.substr(0, dot)) + "_exps");
  std::string_view rest = module.substr(dot + 1);
  const auto number = take_number(rest);
  if (!name || !number || !rest.empty()) return std::nullopt;
  std::string of_expert(*name);
  return of_expert.replace(of_expert.find('*'), 1, *number);
}

std::optional<std::string> name_in_layer(std::string_view module, const GgufFamily& family) {
  auto name = look_up(family.names, module);
  if (!name) name = look_up(kOfLayer, module);
  if (name) return std::string(*name);
  return name_of_expert(module, family);
}

// For errors: "llama, qwen2, qwen3, ... or qwen35moe".
std::string all_architectures() {
  std::string all;
  const std::string_view last = std::ranges::rbegin(kFamilies)->architecture;
  std::string_view before;
  for (const GgufFamily& family : kFamilies) {
    if (family.architecture == before) continue;
    before = family.architecture;
    if (!all.empty()) all += before == last ? " or " : ", ";
    all += before;
  }
  return all;
}

}  // namespace

const GgufFamily& gguf_family(const GgufMetadata& metadata) {
  const std::string name = metadata.required_text("general.architecture");
  const std::int64_t experts = metadata.integer(name + ".expert_count").value_or(0);
  const GgufFamily* found = nullptr;
  for (const GgufFamily& family : kFamilies) {
    if (name != family.architecture) continue;
    if (found == nullptr || family.has_experts() == (experts != 0)) found = &family;
  }
  if (found == nullptr) {
    fail(metadata.where(), ": general.architecture: expected ", all_architectures(), ", found ",
         printable(name));
  }
  return *found;
}

std::int64_t gguf_layers(const GgufMetadata& metadata, const GgufFamily& family) {
  const std::string key = std::string(family.architecture) + ".";
  const std::int64_t blocks = metadata.required_integer(key + "block_count");
  if (!family.has_linear_attention()) return blocks;
  const std::int64_t further = metadata.integer(key + "nextn_predict_layers").value_or(0);
  if (further < 0 || further >= blocks) {
    fail(metadata.where(), ": metadata ", key, "nextn_predict_layers: expected a number below ",
         key, "block_count, which is ", blocks, ", found ", further);
  }
  return blocks - further;
}

std::string_view gguf_module(std::string_view stored) {
  if (!stored.starts_with("blk.")) return "";
  stored.remove_prefix(4);
  if (!take_number(stored)) return "";
  return stored.substr(0, stored.find('.'));
}

std::optional<std::string> hugging_face_name(std::string_view stored, const GgufFamily& family,
                                             std::int64_t layers) {
  const std::size_t dot = stored.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view ending = stored.substr(dot);
  const bool usual = ending == ".weight" || ending == ".bias";
  std::string_view in_layer = stored;
  if (!in_layer.starts_with("blk.")) {
    if (const auto name = look_up(family.tensors, stored)) return std::string(*name);
    const auto name = look_up(kWhole, stored.substr(0, dot));
    return name && usual ? std::optional(std::string(*name).append(ending)) : std::nullopt;
  }
  in_layer.remove_prefix(4);
  const auto layer = take_number(in_layer);
  if (!layer) return std::nullopt;
  if (std::stoll(std::string(*layer)) >= layers && family.has_linear_attention()) {
    return std::string("mtp.").append(stored);
  }
  const std::string prefix = std::string("model.layers.").append(*layer).append(".");
  if (const auto name = look_up(family.tensors, in_layer)) return prefix + std::string(*name);
  if (!usual || !in_layer.ends_with(ending)) return std::nullopt;
  const auto name = name_in_layer(in_layer.substr(0, in_layer.size() - ending.size()), family);
  if (!name) return std::nullopt;
  return prefix + *name + std::string(ending);
}

namespace {

std::int64_t size(const GgufMetadata& metadata, const std::string& key) {
  const std::int64_t value = metadata.required_integer(key);
  constexpr std::int64_t kMax = 1 << 24;  // so that two can be multiplied
  if (value <= 0 || value > kMax) {
    fail(metadata.where(), ": metadata ", key, ": expected a number from 1 to ", kMax, ", found ",
         value);
  }
  return value;
}

void read_linear_heads(const GgufMetadata& metadata, const GgufFamily& family, GgufHeads& heads) {
  const std::string ssm = std::string(family.architecture) + ".ssm.";
  heads.key_heads = size(metadata, ssm + "group_count");
  heads.value_heads = size(metadata, ssm + "time_step_rank");
  heads.key_dim = size(metadata, ssm + "state_size");
  const std::int64_t inner = size(metadata, ssm + "inner_size");
  if (heads.value_heads % heads.key_heads != 0) {
    fail(metadata.where(), ": metadata ", ssm, "time_step_rank: expected a multiple of ",
         "ssm.group_count, which is ", heads.key_heads, ", found ", heads.value_heads);
  }
  if (inner % heads.value_heads != 0) {
    fail(metadata.where(), ": metadata ", ssm, "inner_size: expected a multiple of ",
         "ssm.time_step_rank, which is ", heads.value_heads, ", found ", inner);
  }
  heads.value_dim = inner / heads.value_heads;
  heads.tiled = family.kind != GgufFamily::Kind::qwen3_next;
}

void set_rotary_order(StoredTensor& tensor, std::int64_t heads, const std::string& file) {
  if (heads > tensor.shape[0] / 2 || tensor.shape[0] % (2 * heads) != 0) {
    fail(file, ": tensor ", tensor.stored_name, ": expected rows of ", heads,
         " heads, an even number each, found ", tensor.shape[0]);
  }
  // In a head of d rows the file's order is 0, d/2, 1, d/2 + 1, ...
  const StoredOrder order{.outer = 2, .inner = tensor.shape[0] / heads / 2};
  (tensor.shape.size() == 1 ? tensor.column_order : tensor.row_order) = order;
}

// Rows or columns after `first`, of_head per value head.
void set_tiled_order(StoredTensor& tensor, bool columns, std::int64_t first, std::int64_t of_head,
                     const GgufHeads& heads, const std::string& file) {
  const std::int64_t expected = first + heads.value_heads * of_head;
  const std::int64_t found = columns ? tensor.shape.back() : tensor.shape[0];
  if (found != expected) {
    fail(file, ": tensor ", tensor.stored_name, ": expected ", expected,
         columns && tensor.shape.size() > 1 ? " columns" : " rows", ", as its heads say, found ",
         found);
  }
  const std::int64_t group = heads.value_heads / heads.key_heads;
  if (group == 1 || heads.key_heads == 1) return;
  (columns ? tensor.column_order : tensor.row_order) =
      StoredOrder{.first = first, .outer = heads.key_heads, .inner = group, .size = of_head};
}

}  // namespace

GgufHeads gguf_heads(const GgufMetadata& metadata) {
  const GgufFamily& family = gguf_family(metadata);
  const std::string key = std::string(family.architecture) + ".attention.head_count";
  GgufHeads heads;
  heads.permuted = family.permuted;
  heads.heads = metadata.required_integer(key);
  // Layers of a Gemma 4 may differ in it, which only its configuration looks at.
  const bool by_layer = family.is_gemma4() && metadata.has_array(key + "_kv");
  heads.kv_heads = by_layer ? heads.heads : metadata.integer(key + "_kv").value_or(heads.heads);
  if (heads.heads <= 0 || heads.kv_heads <= 0) {
    fail(metadata.where(), ": metadata ", key, " and ", key,
         "_kv: expected numbers above 0, found ", heads.heads, " and ", heads.kv_heads);
  }
  if (family.has_linear_attention()) read_linear_heads(metadata, family, heads);
  return heads;
}

void set_stored_order(StoredTensor& tensor, std::string_view module, const GgufHeads& heads,
                      const std::string& file) {
  if (heads.permuted && module == "attn_q") set_rotary_order(tensor, heads.heads, file);
  if (heads.permuted && module == "attn_k") set_rotary_order(tensor, heads.kv_heads, file);
  if (heads.key_heads == 0) return;
  if (module == "ssm_a") {
    tensor.stored_as_minus_exp = true;
    if (tensor.shape.size() != 1 || tensor.encoding != Encoding::f32) {
      fail(file, ": tensor ", tensor.stored_name, ": expected F32 [", heads.value_heads,
           "], found ", name_of(tensor.encoding), " ", shape_text(tensor.shape));
    }
  }
  if (!heads.tiled) return;
  const std::int64_t qk = 2 * heads.key_heads * heads.key_dim, dv = heads.value_dim;
  if (module == "attn_qkv" || module == "ssm_conv1d") {
    set_tiled_order(tensor, /*columns=*/false, qk, dv, heads, file);
  } else if (module == "attn_gate") {
    set_tiled_order(tensor, /*columns=*/false, 0, dv, heads, file);
  } else if (module == "ssm_beta" || module == "ssm_alpha") {
    set_tiled_order(tensor, /*columns=*/false, 0, 1, heads, file);
  } else if (module == "ssm_out") {
    set_tiled_order(tensor, /*columns=*/true, 0, dv, heads, file);
  } else if (module == "ssm_a" || module == "ssm_dt") {
    set_tiled_order(tensor, /*columns=*/true, 0, 1, heads, file);
  }
}

}  // namespace nvllm::model
