// What is read of a configuration.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "model/config/config_fixture.h"
#include "model/families/family.h"
#include "testing/read_file.h"

namespace nvllm::model {

TEST_CASE("every key arrives where it belongs") {
  const ModelConfig config = parse(qwen3());
  CHECK(config.architecture == "Qwen3ForCausalLM");
  CHECK(config.hidden_size == 64);
  CHECK(config.intermediate_size == 128);
  CHECK(config.layers == 3);
  CHECK(config.heads == 8);
  CHECK(config.kv_heads == 2);
  CHECK(config.head_dim == 32);
  CHECK(config.vocab_size == 512);
  CHECK(config.max_position_embeddings == 1024);
  CHECK(config.rms_norm_eps == 1e-6f);
  CHECK(config.activation == kernels::Activation::silu);
  CHECK(config.tied_embeddings);
  CHECK(config.rope.type == layers::RopeConfig::Type::standard);
  CHECK(config.rope.theta == 1e6);
  CHECK(config.rope.max_position_embeddings == 1024);
  CHECK(config.dtype == DType::f16);
  CHECK(config.initializer_range == 0.05f);
  CHECK(config.bos_token_id == 1);
  CHECK(config.eos_token_ids == std::vector<std::int64_t>{2, 472});
}

TEST_CASE("every golden model's config.json is read") {
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/golden-models")) {
    const std::string path = (entry.path() / "config.json").string();
    const std::string text = testing::read_file(path);
    CAPTURE(path);
    const ModelConfig config = parse_config(text, "", path);
    const Json all = parse_json(text);
    CHECK(config.architecture == all.at("architectures")[0]);
    const Json json = all.value("text_config", all);
    CHECK(config.hidden_size == json.at("hidden_size"));
    CHECK(config.head_dim * config.heads > 0);
    const std::string type = json.at("model_type");
    const bool gemma3 = type == "gemma3_text";  // whose file does not say that its head is tied
    const bool gemma4 = type == "gemma4_text";
    CHECK(config.tied_embeddings == (gemma3 || json.at("tie_word_embeddings")));
    CHECK(config.qk_norm == (gemma3 || gemma4 || type.starts_with("qwen3")));
    CHECK((config.moe.experts > 0) == (gemma4 ? json.at("enable_moe_block").get<bool>()
                                              : json.contains("num_experts_per_tok")));
    const bool gpt_oss = type == "gpt_oss";
    CHECK(config.qkv_bias == (type == "qwen2" || gpt_oss));
    CHECK(config.attention_sinks == gpt_oss);
    CHECK((config.linear_attention.key_heads > 0) == json.contains("linear_num_key_heads"));
    CHECK(std::string(name_of(config.dtype)) ==
          json.value("torch_dtype", json.value("dtype", "bfloat16")));
    ++models;
  }
  CHECK(models == 29);
}

TEST_CASE("a family decides about biases and norms of q and k") {
  struct Case {
    const char* architecture;
    bool attention_bias, mlp_bias;
    bool qkv_bias, output_bias, has_mlp_bias, qk_norm;
  };
  const std::vector<Case> cases = {
      {"Qwen3ForCausalLM", false, false, false, false, false, true},
      {"Qwen3ForCausalLM", true, false, true, true, false, true},
      {"Qwen2ForCausalLM", false, false, true, false, false, false},
      {"LlamaForCausalLM", false, false, false, false, false, false},
      {"LlamaForCausalLM", true, false, true, true, false, false},
      {"LlamaForCausalLM", false, true, false, false, true, false},
      {"MistralForCausalLM", true, true, false, false, false, false},
  };
  for (const Case& each : cases) {
    CAPTURE(std::string(each.architecture));
    Json json = with(of(each.architecture), "attention_bias", each.attention_bias);
    const ModelConfig config = parse(with(json, "mlp_bias", each.mlp_bias));
    CHECK(config.architecture == each.architecture);
    CHECK(config.qkv_bias == each.qkv_bias);
    CHECK(config.output_bias == each.output_bias);
    CHECK(config.mlp_bias == each.has_mlp_bias);
    CHECK(config.qk_norm == each.qk_norm);
  }
}

TEST_CASE("every family is found by its architecture, its other spelling and its model type") {
  CHECK(families().size() == 14);
  for (const Family* family : families()) {
    Json json = family->has_experts ? with_experts(qwen3()) : qwen3();
    if (family->linear_attention) json = with_linear_attention(json);
    if (std::string(family->model_type).starts_with("gemma4")) json = with_kinds_of_layers(json);
    CHECK(parse(with(json, "architectures", {family->architecture})).architecture ==
          family->architecture);
    if (family->other_spelling != nullptr) {
      CHECK(parse(with(json, "architectures", {family->other_spelling})).architecture ==
            family->architecture);
    }
    const Json nameless = without(with(json, "model_type", family->model_type), "architectures");
    CHECK(parse(nameless).architecture == family->architecture);
  }
  CHECK(parse(with(qwen3(), "architectures", {"Fancy", "LlamaForCausalLM"})).architecture ==
        "LlamaForCausalLM");
}

Json mixture(const char* architecture) {
  return with(with_experts(qwen3()), "architectures", {architecture});
}

TEST_CASE("a Mixtral has experts in every layer, under names of its own") {
  const ModelConfig config = parse(mixture("MixtralForCausalLM"));
  CHECK(config.moe.experts == 12);
  CHECK(config.moe.experts_per_token == 3);
  CHECK(config.moe.intermediate_size == 128);  // which is "intermediate_size"
  CHECK(config.moe.renormalize);
  CHECK(config.moe.layers == std::vector<bool>{true, true, true});
  CHECK(config.moe.layer_count() == 3);
  CHECK_FALSE(config.qk_norm);
  CHECK(config.names.in_layer(2, config.names.router) == "model.layers.2.block_sparse_moe.gate");
  CHECK(config.names.in_expert(2, 11, config.names.expert_up) ==
        "model.layers.2.block_sparse_moe.experts.11.w3");
}

TEST_CASE("a gpt-oss has sinks, biases, and windows in every other layer") {
  const Json json =
      with(without(without(mixture("GptOssForCausalLM"), "attention_bias"), "use_sliding_window"),
           "sliding_window", 128);
  const ModelConfig config = parse(json);
  CHECK(config.attention_sinks);
  CHECK(config.qkv_bias);
  CHECK(config.output_bias);
  CHECK_FALSE(config.qk_norm);
  CHECK(config.windows == std::vector<std::int64_t>{128, 0, 128});
  CHECK(config.moe.experts == 12);
  CHECK(config.moe.bias);
  CHECK(config.moe.renormalize);
  CHECK(config.moe.activation == kernels::Activation::clamped_swiglu);
  CHECK(config.moe.limit == 7);
  CHECK(parse(with(json, "swiglu_limit", 5.5)).moe.limit == 5.5f);
  CHECK(config.names.in_layer(2, config.names.router) == "model.layers.2.mlp.router");
  // Its layer types may say it otherwise.
  const Json full = "full_attention", windowed = "sliding_attention";
  CHECK(parse(with(json, "layer_types", {full, windowed, full})).windows ==
        std::vector<std::int64_t>{0, 128, 0});
}

TEST_CASE("a Qwen3-MoE has experts in the layers that its keys leave them") {
  const Json json = mixture("Qwen3MoeForCausalLM");
  const ModelConfig config = parse(json);
  CHECK(config.qk_norm);
  CHECK(config.moe.experts == 10);
  CHECK(config.moe.intermediate_size == 48);
  CHECK(config.intermediate_size == 128);
  CHECK_FALSE(config.moe.renormalize);
  CHECK(parse(with(json, "norm_topk_prob", true)).moe.renormalize);
  CHECK(config.names.in_expert(0, 9, config.names.expert_down) ==
        "model.layers.0.mlp.experts.9.down_proj");

  using Layers = std::vector<bool>;
  CHECK(config.moe.layers == Layers{true, true, true});
  CHECK(parse(with(json, "mlp_only_layers", {0, 2, 7})).moe.layers == Layers{false, true, false});
  CHECK(parse(with(json, "decoder_sparse_step", 2)).moe.layers == Layers{false, true, false});
  CHECK(parse(with(json, "mlp_only_layers", Json::array())).moe.layer_count() == 3);
  CHECK(parse(with(json, "mlp_only_layers", nullptr)).moe.layer_count() == 3);
  // Without any it is a dense model.
  CHECK(parse(with(json, "decoder_sparse_step", 4)).moe.experts == 0);
}

TEST_CASE("layers have windows as their family and its keys say") {
  using Windows = std::vector<std::int64_t>;
  // In Mistral all layers have a window wherever the key is given; in Qwen some have one, and only
  // where windows are in use.
  const Json mistral =
      without(with(of("MistralForCausalLM"), "sliding_window", 64), "use_sliding_window");
  CHECK(parse(mistral).windows == Windows{64, 64, 64});
  CHECK(parse(mistral).window_of(2) == 64);
  CHECK(parse(mistral, R"({"sliding_window": null})").windows.empty());
  CHECK(parse(mistral, R"({"sliding_window": null})").window_of(2) == 0);
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const Json unused = with(of(architecture), "sliding_window", 64);
    CHECK(parse(unused).windows.empty());
    const Json qwen = with(unused, "use_sliding_window", true);
    CHECK(parse(with(qwen, "max_window_layers", 1)).windows == Windows{0, 64, 64});
    CHECK(parse(with(qwen, "max_window_layers", 0)).windows == Windows{64, 64, 64});
    CHECK(parse(with(qwen, "max_window_layers", 3)).windows.empty());
    CHECK(parse(without(qwen, "max_window_layers")).windows.empty());  // 28, as in transformers
    const Json types =
        with(qwen, "layer_types", {"sliding_attention", "full_attention", "sliding_attention"});
    CHECK(parse(types).windows == Windows{64, 0, 64});
  }
  // As long as the context: none.
  CHECK(parse(with(mistral, "sliding_window", 1023)).windows == Windows{1023, 1023, 1023});
  CHECK(parse(with(mistral, "sliding_window", 1024)).windows.empty());
}

TEST_CASE("the manual on adding a model shows a family as it is") {
  const std::string manual = testing::read_file("docs/add-a-model.md");
  const std::string family = testing::read_file("model/families/qwen3.cc");
  REQUIRE_FALSE(family.empty());
  CHECK(manual.find(family) != std::string::npos);
}

TEST_CASE("tensors have the names that nearly all decoders have") {
  const TensorNames names = parse(qwen3()).names;
  CHECK(std::string(names.embedding) == "model.embed_tokens.weight");
  CHECK(names.in_layer(12, names.q_norm) == "model.layers.12.self_attn.q_norm.weight");
}

TEST_CASE("what may be absent or null has a default") {
  const Json json = qwen3();
  CHECK(parse(without(with(json, "hidden_size", 256), "head_dim")).head_dim == 32);
  CHECK(parse(with(json, "num_key_value_heads", nullptr)).kv_heads == 8);
  CHECK(parse(without(json, "num_key_value_heads")).kv_heads == 8);
  CHECK(parse(without(json, "rms_norm_eps")).rms_norm_eps == 1e-6f);
  CHECK(parse(without(json, "rope_theta")).rope.theta == 1e4);
  CHECK(parse(without(json, "hidden_act")).activation == kernels::Activation::silu);
  CHECK(parse(without(json, "initializer_range")).initializer_range == 0.02f);
  CHECK(parse(without(json, "torch_dtype")).dtype == DType::bf16);
  CHECK_FALSE(parse(without(json, "tie_word_embeddings")).tied_embeddings);
  CHECK(parse(with(json, "bos_token_id", nullptr)).bos_token_id == std::nullopt);
  CHECK(parse(with(json, "eos_token_id", 7)).eos_token_ids == std::vector<std::int64_t>{7});
  CHECK(parse(with(json, "eos_token_id", nullptr)).eos_token_ids.empty());
}

TEST_CASE("types and activations have several names") {
  CHECK(parse(with(qwen3(), "torch_dtype", "bfloat16")).dtype == DType::bf16);
  CHECK(parse(with(qwen3(), "torch_dtype", "torch.float32")).dtype == DType::f32);
  CHECK(parse(with(qwen3(), "dtype", "float32")).dtype == DType::f32);  // the newer key wins
  using kernels::Activation;
  CHECK(parse(with(qwen3(), "hidden_act", "gelu")).activation == Activation::gelu);
  CHECK(parse(with(qwen3(), "hidden_act", "gelu_new")).activation == Activation::gelu_tanh);
  CHECK(parse(with(qwen3(), "hidden_act", "gelu_pytorch_tanh")).activation ==
        Activation::gelu_tanh);
}

TEST_CASE("RoPE is the same in the oldest, the usual and the newest spelling") {
  const std::string yarn = R"("factor": 4.0, "original_max_position_embeddings": 256,
      "beta_fast": 16, "attention_factor": 1.5, "truncate": false)";
  const Json bare = without(without(qwen3(), "rope_scaling"), "rope_theta");
  const std::vector<Json> spellings = {
      with(with(bare, "rope_theta", 5e5), "rope_scaling",
           parse_json("{\"type\": \"yarn\", " + yarn + "}")),
      with(with(bare, "rope_theta", 500000), "rope_scaling",
           parse_json("{\"rope_type\": \"yarn\", " + yarn + "}")),
      with(bare, "rope_parameters",
           parse_json("{\"rope_theta\": 5e5, \"rope_type\": \"yarn\", " + yarn + "}")),
  };
  for (const Json& json : spellings) {
    const layers::RopeConfig rope = parse(json).rope;
    CHECK(rope.type == layers::RopeConfig::Type::yarn);
    CHECK(rope.theta == 5e5);
    CHECK(rope.factor == 4);
    CHECK(rope.original_max_position_embeddings == 256);
    CHECK(rope.beta_fast == 16);
    CHECK(rope.beta_slow == 1);
    CHECK(rope.attention_factor == 1.5);
    CHECK_FALSE(rope.mscale.has_value());
    CHECK_FALSE(rope.truncate);
  }
}

TEST_CASE("every type of RoPE is read with its own keys") {
  const auto rope_of = [](const char* text) {
    return parse(with(qwen3(), "rope_scaling", parse_json(text))).rope;
  };
  using Type = layers::RopeConfig::Type;
  CHECK(rope_of(R"({"rope_type": "default"})").type == Type::standard);
  CHECK(rope_of(R"({"type": "linear", "factor": 2})").type == Type::linear);
  CHECK(rope_of(R"({"type": "dynamic", "factor": 2.5})").factor == 2.5);
  const layers::RopeConfig llama3 = rope_of(R"({"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 2, "high_freq_factor": 5, "original_max_position_embeddings": 128})");
  CHECK(llama3.type == Type::llama3);
  CHECK(llama3.low_freq_factor == 2);
  CHECK(llama3.high_freq_factor == 5);
  CHECK(llama3.original_max_position_embeddings == 128);
  // Without a factor, that by which the positions have grown.
  CHECK(rope_of(R"({"type": "yarn", "original_max_position_embeddings": 256})").factor == 4);
}

TEST_CASE("RoPE scaling stretches the positions that a model can use, as in vLLM") {
  const auto length_with = [](const char* text) {
    return parse(with(qwen3(), "rope_scaling", parse_json(text))).max_model_len();
  };
  CHECK(parse(qwen3()).max_model_len() == 1024);  // max_position_embeddings
  CHECK(length_with(R"({"type": "linear", "factor": 2})") == 2048);
  CHECK(length_with(R"({"type": "dynamic", "factor": 2.5})") == 2560);
  CHECK(length_with(R"({"type": "yarn", "factor": 4})") == 4096);
  CHECK(length_with(R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 768})") ==
        3072);
  // The config's own limit, where it is larger.
  CHECK(length_with(R"({"type": "yarn", "factor": 2, "original_max_position_embeddings": 256})") ==
        1024);
  // max_position_embeddings is that of the stretched model.
  CHECK(length_with(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 512})") == 1024);
  CHECK(length_with(R"({"type": "linear", "factor": 1.0001})") == 1024);
  CHECK(parse(with(with(qwen3(), "max_position_embeddings", 1 << 30), "rope_scaling",
                   parse_json(R"({"type": "linear", "factor": 65536})")))
            .max_model_len() == std::int64_t{1} << 31);
}

TEST_CASE("overrides replace keys and are merged into objects") {
  CHECK(parse(qwen3(), R"({"vocab_size": 1000, "eos_token_id": 9})").vocab_size == 1000);
  CHECK(parse(qwen3(), "{}").vocab_size == 512);
  const Json linear =
      with(qwen3(), "rope_scaling", parse_json(R"({"type": "linear", "factor": 2})"));
  CHECK(parse(linear, R"({"rope_scaling": {"factor": 3}})").rope.factor == 3);
  CHECK(parse(linear, R"({"rope_scaling": {"factor": 3}})").rope.type ==
        layers::RopeConfig::Type::linear);
  CHECK(parse(linear, R"({"rope_scaling": null})").rope.type == layers::RopeConfig::Type::standard);
  CHECK(parse(linear, R"({"rope_scaling": null})").rope.theta == 1e6);
}

TEST_CASE("overrides of RoPE win over a file in another spelling") {
  const Json newest =
      with(without(without(qwen3(), "rope_scaling"), "rope_theta"), "rope_parameters",
           parse_json(R"({"rope_theta": 1e4, "rope_type": "default"})"));
  CHECK(parse(newest, R"({"rope_theta": 2e4})").rope.theta == 2e4);
  const layers::RopeConfig rope =
      parse(newest, R"({"rope_scaling": {"type": "linear", "factor": 2}})").rope;
  CHECK(rope.type == layers::RopeConfig::Type::linear);
  CHECK(rope.theta == 1e4);
  CHECK(parse(qwen3(), R"({"rope_parameters": {"rope_theta": 3e4}})").rope.theta == 3e4);
}

TEST_CASE("a window that is not in use is none") {
  Json json = with(of("Qwen2ForCausalLM"), "sliding_window", 32);
  CHECK(parse(json).qkv_bias);
  CHECK(parse(without(json, "use_sliding_window")).qkv_bias);
  json["use_sliding_window"] = true;
  CHECK(parse(with(json, "sliding_window", 1024)).qkv_bias);  // as long as the context
  CHECK(parse(with(json, "sliding_window", nullptr)).qkv_bias);
  CHECK_FALSE(parse(without(of("MistralForCausalLM"), "use_sliding_window")).qkv_bias);
}

}  // namespace nvllm::model
