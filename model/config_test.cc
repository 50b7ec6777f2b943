#include "model/config.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/family.h"

namespace nvllm::model {
namespace {

using Json = nlohmann::json;

// A small Qwen3, in the spelling of most checkpoints.
Json qwen3() {
  return Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 1,
    "eos_token_id": [2, 472], "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
    "initializer_range": 0.05, "intermediate_size": 128, "max_position_embeddings": 1024,
    "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 8, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "float16",
    "use_sliding_window": false, "vocab_size": 512})");
}

Json of(const char* architecture) {
  Json json = qwen3();
  json["architectures"] = {architecture};
  return json;
}

Json with(Json json, const std::string& key, Json value) {
  json[key] = std::move(value);
  return json;
}

Json without(Json json, const std::string& key) {
  json.erase(key);
  return json;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

ModelConfig parse(const Json& json, const std::string& overrides = "") {
  return parse_config(json.dump(), overrides, "DIR/config.json");
}

std::string refusal(const std::string& text, const std::string& overrides = "") {
  try {
    parse_config(text, overrides, "DIR/config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal_of(const std::string& key, Json value) {
  return refusal(with(qwen3(), key, std::move(value)).dump());
}

}  // namespace

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
    const std::string text = contents(path);
    CAPTURE(path);
    const ModelConfig config = parse_config(text, "", path);
    const Json json = Json::parse(text);
    CHECK(config.architecture == json.at("architectures")[0]);
    CHECK(config.hidden_size == json.at("hidden_size"));
    CHECK(config.head_dim * config.heads > 0);
    CHECK(config.tied_embeddings == json.at("tie_word_embeddings"));
    CHECK(config.qk_norm == (json.at("model_type") == "qwen3"));
    CHECK(config.qkv_bias == (json.at("model_type") == "qwen2"));
    CHECK(config.dtype == DType::bf16);
    ++models;
  }
  CHECK(models == 9);
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
  CHECK(families().size() == 4);
  for (const Family* family : families()) {
    CHECK(parse(of(family->architecture)).architecture == family->architecture);
    if (family->other_spelling != nullptr) {
      CHECK(parse(of(family->other_spelling)).architecture == family->architecture);
    }
    const Json nameless = without(with(qwen3(), "model_type", family->model_type), "architectures");
    CHECK(parse(nameless).architecture == family->architecture);
  }
  CHECK(parse(with(qwen3(), "architectures", {"Fancy", "LlamaForCausalLM"})).architecture ==
        "LlamaForCausalLM");
}

TEST_CASE("the manual on adding a model shows a family as it is") {
  const std::string manual = contents("docs/add-a-model.md");
  const std::string family = contents("model/family_qwen3.cc");
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
           Json::parse("{\"type\": \"yarn\", " + yarn + "}")),
      with(with(bare, "rope_theta", 500000), "rope_scaling",
           Json::parse("{\"rope_type\": \"yarn\", " + yarn + "}")),
      with(bare, "rope_parameters",
           Json::parse("{\"rope_theta\": 5e5, \"rope_type\": \"yarn\", " + yarn + "}")),
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
    return parse(with(qwen3(), "rope_scaling", Json::parse(text))).rope;
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

TEST_CASE("overrides replace keys and are merged into objects") {
  CHECK(parse(qwen3(), R"({"vocab_size": 1000, "eos_token_id": 9})").vocab_size == 1000);
  CHECK(parse(qwen3(), "{}").vocab_size == 512);
  const Json linear =
      with(qwen3(), "rope_scaling", Json::parse(R"({"type": "linear", "factor": 2})"));
  CHECK(parse(linear, R"({"rope_scaling": {"factor": 3}})").rope.factor == 3);
  CHECK(parse(linear, R"({"rope_scaling": {"factor": 3}})").rope.type ==
        layers::RopeConfig::Type::linear);
  CHECK(parse(linear, R"({"rope_scaling": null})").rope.type == layers::RopeConfig::Type::standard);
  CHECK(parse(linear, R"({"rope_scaling": null})").rope.theta == 1e6);
}

TEST_CASE("overrides of RoPE win over a file in another spelling") {
  const Json newest =
      with(without(without(qwen3(), "rope_scaling"), "rope_theta"), "rope_parameters",
           Json::parse(R"({"rope_theta": 1e4, "rope_type": "default"})"));
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

TEST_CASE("whatever is not computed here is refused by name") {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"architectures",
       {"Qwen3MoeForCausalLM"},
       "architecture Qwen3MoeForCausalLM is not supported; known are LlamaForCausalLM, "
       "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"},
      {"hidden_act", "relu2",
       "hidden_act \"relu2\": not supported; known are silu, gelu and gelu_pytorch_tanh"},
      {"rope_scaling",
       {{"rope_type", "longrope"}},
       "rope_scaling.rope_type \"longrope\": not supported; known are default, linear, dynamic, "
       "yarn "
       "and llama3"},
      {"rope_scaling",
       {{"type", "mrope"}},
       "rope_scaling.rope_type \"mrope\": not supported; known are default, linear, dynamic, yarn "
       "and llama3"},
      {"quantization_config",
       {{"quant_method", "gptq"}},
       "quantization_config (an object): quantized checkpoints of this kind are not "
       "supported; use bfloat16, float16 or float32 weights, or a GGUF file"},
      {"partial_rotary_factor", 0.5,
       "partial_rotary_factor 0.5: RoPE over a part of a head is not supported"},
      {"num_experts", 8, "num_experts 8: mixture of experts is not supported"},
      {"num_local_experts", 8, "num_local_experts 8: mixture of experts is not supported"},
      {"n_routed_experts", 64, "n_routed_experts 64: mixture of experts is not supported"},
      {"layer_types",
       {"full_attention", "sliding_attention"},
       "layer_types (a list): layers of type sliding_attention are not supported"},
      {"torch_dtype", "float8_e4m3fn",
       "torch_dtype \"float8_e4m3fn\": not supported; known are bfloat16, float16 and float32"},
  };
  for (const Case& each : cases) {
    CHECK(refusal_of(each.key, each.value) == str("DIR/config.json: ", each.message));
  }
}

TEST_CASE("an active sliding window is refused") {
  const std::string message =
      ": attention to a sliding window is not supported; for contexts that fit into it pass "
      "--hf-overrides '{\"sliding_window\": null}'";
  Json json = with(with(qwen3(), "sliding_window", 32), "use_sliding_window", true);
  CHECK(refusal(json.dump()) == "DIR/config.json: sliding_window 32" + message);
  json = without(with(of("MistralForCausalLM"), "sliding_window", 4096), "use_sliding_window");
  CHECK(refusal(json.dump()) == "DIR/config.json: sliding_window 4096" + message);
  CHECK_FALSE(parse(json, R"({"sliding_window": null})").qkv_bias);
}

TEST_CASE("a value that cannot be is refused with file, key, value and what it must be") {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"hidden_size", 0, "hidden_size 0: must be a whole number from 1 to 65536"},
      {"hidden_size", -64, "hidden_size -64: must be a whole number from 1 to 65536"},
      {"hidden_size", 1e3, "hidden_size 1000.0: must be a whole number from 1 to 65536"},
      {"hidden_size", "64", "hidden_size \"64\": must be a whole number from 1 to 65536"},
      {"hidden_size", {64}, "hidden_size (a list): must be one whole number"},
      {"hidden_size", Json::array(), "hidden_size (a list): must be one whole number"},
      {"hidden_size", true, "hidden_size true: must be a whole number from 1 to 65536"},
      {"hidden_size", 18446744073709551615ull,
       "hidden_size 18446744073709551615: must be a whole number from 1 to 65536"},
      {"hidden_size", nullptr, "hidden_size: missing; it must be 1 to 65536"},
      {"intermediate_size", 0, "intermediate_size 0: must be a whole number from 1 to 16777216"},
      {"num_hidden_layers", 0, "num_hidden_layers 0: must be a whole number from 1 to 4096"},
      {"num_hidden_layers", 1000000000,
       "num_hidden_layers 1000000000: must be a whole number from 1 to 4096"},
      {"num_attention_heads", 0, "num_attention_heads 0: must be a whole number from 1 to 65536"},
      {"num_key_value_heads", 3,
       "num_key_value_heads 3: must divide num_attention_heads, which is 8"},
      {"num_key_value_heads", 16,
       "num_key_value_heads 16: must divide num_attention_heads, which is 8"},
      {"head_dim", 0, "head_dim 0: must be a whole number from 1 to 256"},
      {"head_dim", 512, "head_dim 512: must be a whole number from 1 to 256"},
      {"head_dim", 33,
       "head_dim 33: gives heads of 33 elements; they must have a multiple of 8, at "
       "most 256"},
      {"vocab_size", -1, "vocab_size -1: must be a whole number from 1 to 16777216"},
      {"max_position_embeddings", 0,
       "max_position_embeddings 0: must be a whole number from 1 to 2147483648"},
      {"rms_norm_eps", 0, "rms_norm_eps 0: must be a number from 1e-20 to 1"},
      {"rms_norm_eps", "1e-6", "rms_norm_eps \"1e-6\": must be a number from 1e-20 to 1"},
      {"rope_theta", 0, "rope_theta 0: must be a number from 1 to 1e+12"},
      {"rope_theta", "big", "rope_theta \"big\": must be a number from 1 to 1e+12"},
      {"rope_scaling", "linear",
       "rope_scaling \"linear\": not an object; it must be null or {...}"},
      {"rope_scaling",
       {{"factor", 2}},
       "rope_scaling.rope_type: missing, though there is a factor"},
      {"rope_scaling",
       {{"type", "linear"}},
       "rope_scaling.factor: missing; it must be a number from 1 to 65536"},
      {"rope_scaling",
       {{"type", "linear"}, {"factor", -2}},
       "rope_scaling.factor -2: must be a number from 1 to 65536"},
      {"rope_scaling", {{"type", 7}}, "rope_scaling.rope_type 7: must be a text"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}},
       "rope_scaling.low_freq_factor: missing; it must be a number from 0.001 to 1e+06"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
       "rope_scaling.high_freq_factor 4: must be above low_freq_factor, which is 4"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
       "rope_scaling.original_max_position_embeddings: missing; rope_type llama3 needs it"},
      {"tie_word_embeddings", 1, "tie_word_embeddings 1: must be true or false"},
      {"attention_bias", "no", "attention_bias \"no\": must be true or false"},
      {"eos_token_id", {2, -1}, "eos_token_id (a list): must be a whole number from 0 to 16777216"},
      {"eos_token_id", "</s>", "eos_token_id \"</s>\": must be a whole number from 0 to 16777216"},
      {"architectures", "Qwen3ForCausalLM",
       "architectures \"Qwen3ForCausalLM\": must be a list of texts"},
      {"architectures", {7}, "architectures (a list): must be a list of texts"},
  };
  for (const Case& each : cases) {
    CHECK(refusal_of(each.key, each.value) == str("DIR/config.json: ", each.message));
  }
}

TEST_CASE("a missing key is refused") {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    CHECK(refusal(without(qwen3(), key).dump())
              .starts_with(str("DIR/config.json: ", key, ": missing; it must be 1 to ")));
  }
  const Json nameless = without(without(qwen3(), "architectures"), "model_type");
  CHECK(
      refusal(nameless.dump()).starts_with("DIR/config.json: architectures: missing; known are "));
  const Json odd = without(with(qwen3(), "hidden_size", 100), "head_dim");
  CHECK(
      refusal(odd.dump()) ==
      "DIR/config.json: hidden_size 100: no multiple of num_attention_heads, which is 8, and there "
      "is no head_dim");
}

TEST_CASE("text that is no JSON object is refused with its place") {
  CHECK(refusal("") == "DIR/config.json: no valid JSON at line 1, column 1");
  CHECK(refusal("{\n  \"a\": 1,\n  b\n}") == "DIR/config.json: no valid JSON at line 3, column 3");
  CHECK(refusal("{\"hidden_size\": 64") == "DIR/config.json: no valid JSON at line 1, column 19");
  CHECK(refusal("[1]") ==
        "DIR/config.json: holds array, not an object such as {\"vocab_size\": 1000}");
  CHECK(refusal("{\"a\": 1e999}") == "DIR/config.json: holds a number that is too large");
  CHECK(refusal(std::string(100, '[')) == "DIR/config.json: nested deeper than 32 levels");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  CHECK(refusal(deep) == "DIR/config.json: nested deeper than 32 levels");
}

TEST_CASE("overrides can be checked before there is a file") {
  check_overrides("");
  check_overrides(R"({"vocab_size": 0})");
  CHECK_THROWS_WITH_AS(check_overrides("{"),
                       "--hf-overrides \"{\": no valid JSON at line 1, column 2", Error);
}

TEST_CASE("bad overrides are refused in one line, with what was given") {
  const std::string good = qwen3().dump();
  CHECK(refusal(good, "{vocab_size: 3}") ==
        "--hf-overrides \"{vocab_size: 3}\": no valid JSON at line 1, column 2");
  CHECK(refusal(good, "7") ==
        "--hf-overrides \"7\": holds number, not an object such as {\"vocab_size\": 1000}");
  CHECK(refusal(good, R"({"vocab_size": 0})") ==
        "DIR/config.json with --hf-overrides: vocab_size 0: must be a whole number from 1 to "
        "16777216");
  CHECK(refusal(good, R"({"rope_scaling": 3})") ==
        "--hf-overrides \"{\\\"rope_scaling\\\": 3}\": rope_scaling 3: not an object; it must be "
        "null "
        "or {...}");
}

}  // namespace nvllm::model
