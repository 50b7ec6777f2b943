#include "model/testing/gguf_conversion.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json_text.h"
#include "base/text.h"
#include "device/backend.h"
#include "kernels/gemm/quantized_weight.h"
#include "model/loading/loader.h"

namespace nvllm::model {
namespace {

using kernels::QuantizedShape;
using kernels::WeightFormat;

struct Values {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// Any tensor, dequantized.
Values read(const Checkpoint& checkpoint, const std::string& name, Backend& backend) {
  const StoredTensor* const tensor = checkpoint.find(name);
  NVLLM_CHECK(tensor != nullptr, name);
  const bool matrix = tensor->shape.size() == 2;
  layers::Parameter parameter;
  parameter.name = name;
  parameter.shape = tensor->shape;
  parameter.slices = {
      {name, tensor->shape, {0, tensor->shape[0]}, {0, matrix ? tensor->shape[1] : 1}, 0}};
  layers::Parameter* const parameters[] = {&parameter};
  const Buffer memory = bind_parameters(parameters, DType::f32, backend);
  load_parameters(parameters, checkpoint, backend, {.threads = 1});
  const float* const begin = parameter.view.as<float>();
  return {tensor->shape, {begin, begin + parameter.elements()}};
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes += GgufBuilder::bytes_of(value);
}

// Two values of 4 bits in a byte: value i, and value i + 16.
void append_nibbles(std::string& bytes, const std::uint8_t* values) {
  for (int i = 0; i < 16; ++i) {
    append(bytes, static_cast<std::uint8_t>(values[i] | values[i + 16] << 4));
  }
}

// A row in blocks of 32.
void append_blocks(std::string& bytes, GgufType type, std::span<const float> row) {
  const WeightFormat format = type == GgufType::mxfp4  ? WeightFormat::mxfp4
                              : type == GgufType::q8_0 ? WeightFormat::int8
                                                       : WeightFormat::int4;
  const QuantizedShape shape{format, 1, static_cast<std::int64_t>(row.size()), 32};
  const kernels::QuantizedRow quantized = quantize_row(shape, row);
  for (std::size_t block = 0; 32 * block < row.size(); ++block) {
    const std::uint8_t* const values = quantized.values.data() + 32 * block;
    if (type == GgufType::mxfp4) {
      append(bytes, kernels::float_to_e8m0(quantized.scales[block]));
      append_nibbles(bytes, values);
      continue;
    }
    append(bytes, from_float<F16>(quantized.scales[block]));
    if (type == GgufType::q4_0) {
      append_nibbles(bytes, values);
    } else {
      for (int i = 0; i < 32; ++i) append(bytes, static_cast<std::uint8_t>(values[i] - 128));
    }
  }
}

std::string encode(const Values& tensor, GgufType type) {
  std::string bytes;
  if (type == GgufType::f32) {
    for (const float value : tensor.values) append(bytes, value);
  } else if (type == GgufType::bf16) {
    for (const float value : tensor.values) append(bytes, from_float<Bf16>(value));
  } else {
    const auto columns = static_cast<std::size_t>(tensor.shape.back());
    for (std::size_t at = 0; at < tensor.values.size(); at += columns) {
      append_blocks(bytes, type, std::span(tensor.values).subspan(at, columns));
    }
  }
  return bytes;
}

// The rows of each head, 0, d/2, 1, d/2 + 1, ...
void permute(Values& tensor, std::int64_t heads) {
  const std::int64_t d = tensor.shape[0] / heads, columns = tensor.shape[1];
  const std::vector<float> before = tensor.values;
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
    const std::int64_t in_head = row % d, half = d / 2;
    const std::int64_t to = row - in_head + in_head % half * 2 + in_head / half;
    std::copy_n(before.begin() + row * columns, columns, tensor.values.begin() + to * columns);
  }
}

class Converter {
 public:
  Converter(const Checkpoint& checkpoint, const GgufConversion& conversion)
      : checkpoint_(checkpoint),
        conversion_(conversion),
        config_(parse_json(checkpoint.config_json())) {
    const std::string type = config_["model_type"];
    mixtral_ = type == "mixtral", gpt_oss_ = type == "gpt_oss";
    architecture_ = mixtral_ ? "llama" : gpt_oss_ ? "gpt-oss" : "qwen3moe";
  }

  std::string convert() {
    add_metadata();
    add("token_embd.weight", "model.embed_tokens.weight");
    add("output_norm.weight", "model.norm.weight");
    add("output.weight", "lm_head.weight");
    for (std::int64_t layer = 0; layer < integer("num_hidden_layers"); ++layer) {
      add_attention(layer);
      add_mlp(layer);
    }
    return builder_.file();
  }

 private:
  std::int64_t integer(const char* key) const { return config_[key].get<std::int64_t>(); }

  void u32(const std::string& key, std::int64_t value) {
    builder_.u32(architecture_ + key, static_cast<std::uint32_t>(value));
  }
  void f32(const std::string& key, const nlohmann::json& value) {
    builder_.f32(architecture_ + key, value.get<float>());
  }

  void add_metadata() {
    builder_.text("general.architecture", architecture_);
    u32(".block_count", integer("num_hidden_layers"));
    u32(".context_length", integer("max_position_embeddings"));
    u32(".embedding_length", integer("hidden_size"));
    u32(".feed_forward_length", integer("intermediate_size"));
    u32(".attention.head_count", integer("num_attention_heads"));
    u32(".attention.head_count_kv", integer("num_key_value_heads"));
    f32(".attention.layer_norm_rms_epsilon", config_["rms_norm_eps"]);
    f32(".rope.freq_base", config_["rope_theta"]);
    u32(".expert_count", integer(mixtral_ || gpt_oss_ ? "num_local_experts" : "num_experts"));
    u32(".expert_used_count", integer("num_experts_per_tok"));
    if (mixtral_) return;
    u32(".attention.key_length", integer("head_dim"));
    u32(".attention.value_length", integer("head_dim"));
    u32(".expert_feed_forward_length",
        integer(gpt_oss_ ? "intermediate_size" : "moe_intermediate_size"));
    if (!gpt_oss_) return;
    u32(".attention.sliding_window", integer("sliding_window"));
    const auto& rope = config_["rope_scaling"];
    builder_.text(architecture_ + ".rope.scaling.type", "yarn");
    f32(".rope.scaling.factor", rope["factor"]);
    u32(".rope.scaling.original_context_length",
        rope["original_max_position_embeddings"].get<std::int64_t>());
    f32(".rope.scaling.yarn_beta_fast", rope["beta_fast"]);
    f32(".rope.scaling.yarn_beta_slow", rope["beta_slow"]);
  }

  // As GGUF has dimensions.
  void add(const std::string& name, const Values& tensor) {
    const GgufType type = tensor.shape.size() == 1 || name.ends_with(".bias")
                              ? GgufType::f32
                              : conversion_.type(name);
    builder_.tensor(name, type, {tensor.shape.rbegin(), tensor.shape.rend()}, encode(tensor, type));
  }
  void add(const std::string& name, const std::string& theirs) {
    add(name, read(checkpoint_, theirs, *backend_));
  }
  // If there is one.
  void add_optional(const std::string& name, const std::string& theirs) {
    if (checkpoint_.find(theirs) != nullptr) add(name, theirs);
  }

  void add_attention(std::int64_t layer) {
    const std::string ours = str("blk.", layer, "."), theirs = str("model.layers.", layer, ".");
    add(ours + "attn_norm.weight", theirs + "input_layernorm.weight");
    add(ours + (gpt_oss_ ? "post_attention_norm.weight" : "ffn_norm.weight"),
        theirs + "post_attention_layernorm.weight");
    for (const auto& [our, their] : {std::pair{"attn_q", "q_proj"},
                                     {"attn_k", "k_proj"},
                                     {"attn_v", "v_proj"},
                                     {"attn_output", "o_proj"}}) {
      Values weight = read(checkpoint_, theirs + "self_attn." + their + ".weight", *backend_);
      if (mixtral_ && their[0] == 'q') permute(weight, integer("num_attention_heads"));
      if (mixtral_ && their[0] == 'k') permute(weight, integer("num_key_value_heads"));
      add(ours + our + ".weight", weight);
      add_optional(ours + our + ".bias", theirs + "self_attn." + their + ".bias");
    }
    add_optional(ours + "attn_q_norm.weight", theirs + "self_attn.q_norm.weight");
    add_optional(ours + "attn_k_norm.weight", theirs + "self_attn.k_norm.weight");
    add_optional(ours + "attn_sinks.weight", theirs + "self_attn.sinks");
  }

  void add_mlp(std::int64_t layer) {
    const std::string ours = str("blk.", layer, "."),
                      mlp = str("model.layers.", layer, mixtral_ ? ".block_sparse_moe." : ".mlp.");
    const std::string router = mlp + (gpt_oss_ ? "router" : "gate");
    const bool sparse = checkpoint_.find(router + ".weight") != nullptr;
    if (sparse) {
      add(ours + "ffn_gate_inp.weight", router + ".weight");
      add_optional(ours + "ffn_gate_inp.bias", router + ".bias");
    }
    for (const auto& [our, their, in_mixtral] : {std::tuple{"ffn_gate", "gate_proj", "w1"},
                                                 {"ffn_up", "up_proj", "w3"},
                                                 {"ffn_down", "down_proj", "w2"}}) {
      if (!sparse) {
        add(ours + our + ".weight", mlp + their + ".weight");
        continue;
      }
      const std::string module = std::string(".") + (mixtral_ ? in_mixtral : their);
      add_experts(ours + our, mlp + "experts.", module + ".weight", ".weight");
      if (gpt_oss_) add_experts(ours + our, mlp + "experts.", module + ".bias", ".bias");
    }
  }

  void add_experts(const std::string& ours, const std::string& prefix, const std::string& module,
                   const char* ending) {
    Values all;
    std::int64_t expert = 0;
    for (; checkpoint_.find(str(prefix, expert, module)) != nullptr; ++expert) {
      const Values one = read(checkpoint_, str(prefix, expert, module), *backend_);
      if (conversion_.tensor_per_expert) add(str(ours, ".", expert, ending), one);
      all.shape = one.shape;
      all.values.insert(all.values.end(), one.values.begin(), one.values.end());
    }
    all.shape.insert(all.shape.begin(), expert);
    if (!conversion_.tensor_per_expert) add(ours + "_exps" + ending, all);
  }

  const Checkpoint& checkpoint_;
  const GgufConversion& conversion_;
  const nlohmann::json config_;
  const std::unique_ptr<Backend> backend_ = create_backend(DeviceKind::cpu);
  std::string architecture_;
  bool mixtral_ = false, gpt_oss_ = false;
  GgufBuilder builder_;
};

}  // namespace

std::string gguf_of(const Checkpoint& checkpoint, const GgufConversion& conversion) {
  return Converter(checkpoint, conversion).convert();
}

}  // namespace nvllm::model
