// GGUF files as models: names, order of rows, configuration, parts.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "model/checkpoint.h"
#include "model/checkpoint_file.h"
#include "model/gguf_builder.h"
#include "model/gguf_names.h"
#include "model/gguf_rope.h"
#include "model/test_folder.h"

namespace nvllm::model {
namespace {

using Json = nlohmann::json;

// Metadata of a model with 2 heads of 4, 1 head of keys and values, 3 tokens, 1 layer.
GgufBuilder metadata_of(const std::string& architecture) {
  GgufBuilder b;
  b.text("general.architecture", architecture);
  b.u32(architecture + ".block_count", 1).u32(architecture + ".context_length", 128);
  b.u32(architecture + ".embedding_length", 8).u32(architecture + ".feed_forward_length", 6);
  b.u32(architecture + ".attention.head_count", 2);
  b.u32(architecture + ".attention.head_count_kv", 1);
  b.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return b;
}

GgufBuilder& add_embedding(GgufBuilder& b) {
  return b.counting("token_embd.weight", {8, 3});
}

Checkpoint open(const GgufBuilder& builder) {
  const TestFolder folder;
  folder.write("model.gguf", builder.file());
  return open_checkpoint(folder.path());
}

Json config_of(const GgufBuilder& builder) {
  return parse_json(open(builder).config_json());
}

std::string error_of_file(const GgufBuilder& builder) {
  const TestFolder folder;
  folder.write("model.gguf", builder.file());
  return error_of(folder, "model.gguf");
}

// The first element of each row of a float32 tensor, in the tensor's own order.
std::vector<float> first_column(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  std::vector<float> column;
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
    float value = 0;
    const auto at = static_cast<std::uint64_t>(tensor.stored_row(row));
    read_at(checkpoint.files()[tensor.file], tensor.offset + at * tensor.row_bytes(),
            std::as_writable_bytes(std::span(&value, 1)));
    column.push_back(value);
  }
  return column;
}

TEST_CASE("every name has one in Hugging Face's spelling") {
  const auto name = [](std::string_view stored) { return hugging_face_name(stored).value_or("-"); };
  CHECK(name("token_embd.weight") == "model.embed_tokens.weight");
  CHECK(name("output_norm.weight") == "model.norm.weight");
  CHECK(name("output.weight") == "lm_head.weight");
  CHECK(name("blk.0.attn_norm.weight") == "model.layers.0.input_layernorm.weight");
  CHECK(name("blk.7.attn_q.weight") == "model.layers.7.self_attn.q_proj.weight");
  CHECK(name("blk.7.attn_k.bias") == "model.layers.7.self_attn.k_proj.bias");
  CHECK(name("blk.17.attn_v.weight") == "model.layers.17.self_attn.v_proj.weight");
  CHECK(name("blk.17.attn_output.weight") == "model.layers.17.self_attn.o_proj.weight");
  CHECK(name("blk.100.attn_q_norm.weight") == "model.layers.100.self_attn.q_norm.weight");
  CHECK(name("blk.1.attn_k_norm.weight") == "model.layers.1.self_attn.k_norm.weight");
  CHECK(name("blk.1.ffn_norm.weight") == "model.layers.1.post_attention_layernorm.weight");
  CHECK(name("blk.1.ffn_gate.weight") == "model.layers.1.mlp.gate_proj.weight");
  CHECK(name("blk.1.ffn_up.weight") == "model.layers.1.mlp.up_proj.weight");
  CHECK(name("blk.1.ffn_down.weight") == "model.layers.1.mlp.down_proj.weight");
  for (const std::string_view other :
       {"", "weight", "blk.attn_q.weight", "blk..attn_q.weight", "blk.01.attn_q.weight",
        "blk.-1.attn_q.weight", "blk.1.attn_q", "blk.1.attn_q.scale", "blk.1.ffn_gate_exps.weight",
        "blk.1.token_embd.weight", "attn_q.weight", "blk.99999999.attn_q.weight"}) {
    CHECK(name(other) == "-");
  }
}

TEST_CASE("a llama's q and k come back in Hugging Face's order of rows") {
  GgufBuilder b = metadata_of("llama");
  add_embedding(b).counting("blk.0.attn_q.weight", {8, 8}).counting("blk.0.attn_k.weight", {8, 4});
  b.counting("blk.0.attn_v.weight", {8, 4}).counting("blk.0.attn_q.bias", {8});
  const Checkpoint checkpoint = open(b);
  // Rows 0, 1, 2, 3 of a head are in the file as pairs (0, 2), (1, 3).
  const StoredTensor& q = checkpoint.get("model.layers.0.self_attn.q_proj.weight", {8, 8});
  CHECK(first_column(checkpoint, q) == std::vector<float>{0, 16, 8, 24, 32, 48, 40, 56});
  const StoredTensor& k = checkpoint.get("model.layers.0.self_attn.k_proj.weight", {4, 8});
  CHECK(first_column(checkpoint, k) == std::vector<float>{0, 16, 8, 24});
  const StoredTensor& v = checkpoint.get("model.layers.0.self_attn.v_proj.weight", {4, 8});
  CHECK(first_column(checkpoint, v) == std::vector<float>{0, 8, 16, 24});
  const StoredTensor& bias = checkpoint.get("model.layers.0.self_attn.q_proj.bias", {8});
  CHECK(first_column(checkpoint, bias) == std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7});
  CHECK(q.stored_name == "blk.0.attn_q.weight");
}

TEST_CASE("qwen's q and k are in order already") {
  for (const std::string architecture : {"qwen2", "qwen3"}) {
    GgufBuilder b = metadata_of(architecture);
    add_embedding(b).counting("blk.0.attn_q.weight", {8, 8});
    const Checkpoint checkpoint = open(b);
    const StoredTensor& q = checkpoint.get("model.layers.0.self_attn.q_proj.weight", {8, 8});
    CHECK(first_column(checkpoint, q) == std::vector<float>{0, 8, 16, 24, 32, 40, 48, 56});
  }
}

TEST_CASE("an error names a tensor in both spellings") {
  GgufBuilder b = metadata_of("qwen2");
  add_embedding(b).counting("blk.0.attn_q.weight", {8, 8});
  const TestFolder folder;
  folder.write("model.gguf", b.file());
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  const std::string message = folder.path("model.gguf") +
                              ": tensor model.layers.0.self_attn.q_proj.weight "
                              "(blk.0.attn_q.weight): expected shape [4, 8], found [8, 8]";
  CHECK_THROWS_WITH_AS((void)checkpoint.get("model.layers.0.self_attn.q_proj.weight", {4, 8}),
                       message.c_str(), Error);
}

TEST_CASE("a header longer than what is read first") {
  GgufBuilder b = metadata_of("llama");
  b.text("tokenizer.chat_template", std::string(5 << 20, 'x'));
  b.u32("tokenizer.ggml.bos_token_id", 1);
  CHECK(config_of(add_embedding(b))["bos_token_id"] == 1);
}

TEST_CASE("the configuration of a llama") {
  GgufBuilder b = metadata_of("llama");
  b.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
  b.f32("llama.rope.freq_base", 500000.0f).u32("llama.rope.dimension_count", 4);
  CHECK(config_of(add_embedding(b)) == parse_json(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
    "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 3, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": true,
    "attention_bias": false, "mlp_bias": false, "torch_dtype": "float32", "rope_theta": 500000.0,
    "bos_token_id": 1, "eos_token_id": 2})"));
}

TEST_CASE("what the tensors say of the configuration") {
  GgufBuilder b = metadata_of("llama");
  b.u32("llama.attention.key_length", 6).u32("llama.attention.value_length", 6);
  b.u32("tokenizer.ggml.eos_token_id", 2).u32("tokenizer.ggml.eot_token_id", 7);
  b.tensor("token_embd.weight", GgufType::f16, {8, 5}, std::string(80, '\0'));
  b.counting("output.weight", {8, 5}).counting("blk.0.attn_q.bias", {12});
  const Json config = config_of(b);
  CHECK(config["head_dim"] == 6);
  CHECK(config["vocab_size"] == 5);
  CHECK(config["tie_word_embeddings"] == false);
  CHECK(config["attention_bias"] == true);
  CHECK(config["torch_dtype"] == "float16");
  CHECK(config["eos_token_id"] == parse_json("[2, 7]"));
  CHECK_FALSE(config.contains("bos_token_id"));
}

TEST_CASE("the configurations of qwens; that of a qwen2 leaves biases to its class") {
  for (const auto& [architecture, name] :
       {std::pair("qwen2", "Qwen2ForCausalLM"), std::pair("qwen3", "Qwen3ForCausalLM")}) {
    GgufBuilder b = metadata_of(architecture);
    const Json config = config_of(add_embedding(b));
    CHECK(config["architectures"][0] == name);
    CHECK(config["model_type"] == architecture);
    CHECK(config.contains("attention_bias") == (config["model_type"] == "qwen3"));
    CHECK(config["rope_theta"] == 10000.0);
  }
}

TEST_CASE("RoPE scaling in metadata") {
  GgufBuilder linear = metadata_of("qwen2");
  linear.text("qwen2.rope.scaling.type", "linear").f32("qwen2.rope.scaling.factor", 4);
  CHECK(config_of(add_embedding(linear))["rope_scaling"] ==
        parse_json(R"({"rope_type": "linear", "factor": 4.0})"));

  GgufBuilder of_old = metadata_of("llama");
  of_old.f32("llama.rope.scale_linear", 2);
  CHECK(config_of(add_embedding(of_old))["rope_scaling"] ==
        parse_json(R"({"rope_type": "linear", "factor": 2.0})"));

  GgufBuilder yarn = metadata_of("qwen3");
  yarn.text("qwen3.rope.scaling.type", "yarn").f32("qwen3.rope.scaling.factor", 4);
  yarn.u32("qwen3.rope.scaling.original_context_length", 32);
  yarn.f32("qwen3.rope.scaling.yarn_beta_fast", 24);
  CHECK(config_of(add_embedding(yarn))["rope_scaling"] ==
        parse_json(R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 24.0,
                        "original_max_position_embeddings": 32})"));
  yarn.f32("qwen3.rope.scaling.attn_factor", 2);
  // 2 (1 + 0.1 ln 4)
  CHECK(config_of(yarn)["rope_scaling"]["attention_factor"].get<double>() ==
        doctest::Approx(2.2772588722).epsilon(1e-9));

  GgufBuilder none = metadata_of("qwen3");
  none.text("qwen3.rope.scaling.type", "none").f32("qwen3.rope.scaling.factor", 4);
  CHECK_FALSE(config_of(add_embedding(none)).contains("rope_scaling"));
}

// Frequencies of a head as Llama 3.1 divides them.
std::vector<float> divisors(const Llama3Scaling& scaling, double theta, int pairs) {
  std::vector<float> result;
  for (int i = 0; i < pairs; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(theta, double(i) / pairs);
    result.push_back(static_cast<float>(llama3_divisor(scaling, wavelength)));
  }
  return result;
}

TEST_CASE("Llama 3's factors give back the scaling that they were made from") {
  for (const double factor : {8.0, 32.0}) {
    const auto found = find_llama3_scaling(divisors({.factor = factor}, 500000, 64), 500000);
    REQUIRE(found);
    CHECK(found->factor == factor);
    CHECK(found->low_freq_factor == 1);
    CHECK(found->high_freq_factor == 4);
    CHECK(found->original_max_position_embeddings == 8192);
  }
}

TEST_CASE("other parameters of the same kind give the same divisors") {
  // From many blended frequencies to none.
  for (const int pairs : {64, 32, 16, 8, 4, 2, 1}) {
    for (const double theta : {10000.0, 500000.0}) {
      for (const Llama3Scaling& scaling :
           {Llama3Scaling{4, 1, 2, 64}, Llama3Scaling{8, 0.5, 16, 256},
            Llama3Scaling{3, 2, 3, 1000}, Llama3Scaling{1, 1, 4, 64}}) {
        const std::vector<float> expected = divisors(scaling, theta, pairs);
        const auto found = find_llama3_scaling(expected, theta);
        CAPTURE(pairs);
        CAPTURE(theta);
        CAPTURE(scaling.factor);
        REQUIRE(found);
        const std::vector<float> again = divisors(*found, theta, pairs);
        for (int i = 0; i < pairs; ++i)
          CHECK(again[i] == doctest::Approx(expected[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("factors of another kind are none of Llama 3's") {
  std::vector<float> factors = divisors({.factor = 8}, 500000, 64);
  factors[35] *= 1.001f;
  CHECK_FALSE(find_llama3_scaling(factors, 500000));
  CHECK_FALSE(find_llama3_scaling(divisors({.factor = 8}, 500000, 64), 10000));
  CHECK_FALSE(find_llama3_scaling(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, 10000));
  CHECK_FALSE(find_llama3_scaling(std::vector<float>{8, 1}, 10000));
  CHECK_FALSE(find_llama3_scaling(std::vector<float>{1, 0}, 10000));
  CHECK_FALSE(
      find_llama3_scaling(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()}, 10000));
  CHECK_FALSE(find_llama3_scaling({}, 10000));
}

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_CASE("rope_freqs.weight becomes a llama3 scaling, and no tensor") {
  GgufBuilder b = metadata_of("llama");
  b.u32("llama.attention.key_length", 128).u32("llama.attention.value_length", 128);
  b.f32("llama.rope.freq_base", 500000);
  b.tensor("rope_freqs.weight", GgufType::f32, {64}, floats(divisors({.factor = 32}, 500000, 64)));
  const Checkpoint checkpoint = open(add_embedding(b));
  CHECK(checkpoint.tensors().size() == 1);
  CHECK(parse_json(checkpoint.config_json())["rope_scaling"] == parse_json(R"({
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192})"));
}

TEST_CASE("rope_freqs.weight that cannot be used") {
  const auto error_with = [](const std::vector<float>& values) {
    GgufBuilder b = metadata_of("llama");
    b.tensor("rope_freqs.weight", GgufType::f32, {values.size()}, floats(values));
    return error_of_file(add_embedding(b));
  };
  CHECK(error_with({1, 2}) == "no error");
  CHECK(error_with({2, 1}) ==
        "DIR/model.gguf: tensor rope_freqs.weight: expected the factors of Llama 3's RoPE scaling, "
        "found others");
  CHECK(error_with({1, 2, 3}) ==
        "DIR/model.gguf: tensor rope_freqs.weight: expected shape [2], found [3]");
  GgufBuilder both = metadata_of("llama");
  both.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4);
  both.tensor("rope_freqs.weight", GgufType::f32, {2}, floats({1, 2}));
  CHECK(error_of_file(add_embedding(both)) ==
        "DIR/model.gguf: both tensor rope_freqs.weight and RoPE scaling linear; expected one of "
        "them");
  GgufBuilder half = metadata_of("llama");
  half.tensor("rope_freqs.weight", GgufType::f16, {2}, "1234");
  CHECK(error_of_file(add_embedding(half)) ==
        "DIR/model.gguf: tensor rope_freqs.weight: expected F32 of one dimension, found F16 [2]");
}

TEST_CASE("models that are not supported are refused by name") {
  const std::string where = "DIR/model.gguf: ";
  CHECK(error_of_file(GgufBuilder()) == where + "metadata general.architecture is missing");
  GgufBuilder gemma = metadata_of("gemma2");
  CHECK(error_of_file(add_embedding(gemma)) ==
        where + "general.architecture: expected llama, qwen2 or qwen3, found gemma2");

  const auto error_with_u32 = [](const std::string& key, std::uint32_t value) {
    GgufBuilder b = metadata_of("llama");
    b.u32(key, value);
    return error_of_file(add_embedding(b));
  };
  CHECK(error_with_u32("llama.expert_count", 8) ==
        where + "metadata llama.expert_count: expected none, or 0, found 8");
  CHECK(error_with_u32("llama.expert_count", 0) == "no error");
  CHECK(error_with_u32("llama.attention.sliding_window", 64) ==
        where + "metadata llama.attention.sliding_window: expected none, or 0, found 64");
  CHECK(error_with_u32("llama.attention.sliding_window", 128) == "no error");
  CHECK(error_with_u32("llama.rope.dimension_count", 2) ==
        where + "metadata llama.rope.dimension_count: expected the head size 4, found 2");
  CHECK(error_with_u32("llama.attention.value_length", 8) ==
        where + "metadata llama.attention.value_length: expected the head size 4, found 8");
  GgufBuilder longrope = metadata_of("llama");
  longrope.text("llama.rope.scaling.type", "longrope");
  CHECK(error_of_file(add_embedding(longrope)) ==
        where + "metadata llama.rope.scaling.type: expected none, linear or yarn, found longrope");
}

TEST_CASE("tensors that do not belong") {
  const std::string where = "DIR/model.gguf: ";
  GgufBuilder b = metadata_of("llama");
  CHECK(error_of_file(b) ==
        where + "tensor token_embd.weight: expected [vocabulary, 8], found none");
  add_embedding(b);
  GgufBuilder unknown = b;
  unknown.counting("blk.0.ffn_gate_exps.weight", {2, 2, 2});
  CHECK(error_of_file(unknown) == where +
                                      "tensor blk.0.ffn_gate_exps.weight: expected a tensor of a "
                                      "llama, qwen2 or qwen3, found a "
                                      "name unknown here");
  GgufBuilder odd = b;
  odd.counting("blk.0.attn_q.weight", {8, 6});
  CHECK(error_of_file(odd) == where +
                                  "tensor blk.0.attn_q.weight: expected rows of 2 heads, an even "
                                  "number each, found 6");
}

TEST_CASE("metadata that is missing or makes no sense") {
  const std::string where = "DIR/model.gguf: ";
  GgufBuilder bare;
  bare.text("general.architecture", "llama").u32("llama.attention.head_count", 2);
  CHECK(error_of_file(add_embedding(bare)) == where + "metadata llama.embedding_length is missing");
  GgufBuilder none;
  none.text("general.architecture", "llama").u32("llama.attention.head_count", 0);
  CHECK(error_of_file(none) ==
        where +
            "metadata llama.attention.head_count and llama.attention.head_count_kv: expected "
            "numbers above 0, found 0 and 0");
  GgufBuilder layered;
  layered.text("general.architecture", "llama").texts("llama.attention.head_count", {"2", "4"});
  CHECK(error_of_file(layered) ==
        where +
            "metadata llama.attention.head_count: expected a whole number, found an array of 2");
}

// Part `no` of `count`, with one tensor; the first has the metadata too.
GgufBuilder part(std::uint32_t no, std::uint32_t count) {
  GgufBuilder b = no == 0 ? metadata_of("qwen3") : GgufBuilder();
  b.raw("split.no", 2, GgufBuilder::bytes_of(static_cast<std::uint16_t>(no)));
  b.raw("split.count", 2, GgufBuilder::bytes_of(static_cast<std::uint16_t>(count)));
  if (no == 0) return add_embedding(b);
  return b.counting("blk." + std::to_string(no - 1) + ".ffn_up.weight", {8, 6});
}

TEST_CASE("a model in parts") {
  const TestFolder folder;
  for (std::uint32_t no = 0; no < 3; ++no) {
    folder.write("m-0000" + std::to_string(no + 1) + "-of-00003.gguf", part(no, 3).file());
  }
  for (const std::string name : {"", "m-00001-of-00003.gguf"}) {
    const Checkpoint checkpoint = open_checkpoint(folder.path(name));
    CHECK(checkpoint.describe() == "3 GGUF files in " + folder.path());
    CHECK(checkpoint.get("model.embed_tokens.weight", {3, 8}).file == 0);
    const StoredTensor& last = checkpoint.get("model.layers.1.mlp.up_proj.weight", {6, 8});
    CHECK(last.file == 2);
    CHECK(first_column(checkpoint, last)[1] == 8);
  }
  CHECK(error_of(folder, "m-00002-of-00003.gguf") ==
        "DIR/m-00002-of-00003.gguf: metadata general.architecture is missing");
  std::filesystem::remove(folder.path("m-00003-of-00003.gguf"));
  CHECK(error_of(folder) == "DIR/m-00003-of-00003.gguf: No such file or directory (ENOENT)");
}

TEST_CASE("parts that do not fit together") {
  const TestFolder folder;
  folder.write("m-00001-of-00002.gguf", part(0, 2).file());
  folder.write("m-00002-of-00002.gguf", part(0, 2).file());
  CHECK(error_of(folder) ==
        "DIR/m-00002-of-00002.gguf: expected part 2 of a model, found 1 of 2; pass the path of the "
        "first part, or of its folder");
  folder.write("m-00002-of-00002.gguf", part(1, 3).file());
  CHECK(error_of(folder) ==
        "DIR/m-00002-of-00002.gguf: expected one of 2 parts, as DIR/m-00001-of-00002.gguf says, "
        "found one of 3");
  GgufBuilder twice = part(1, 2);
  folder.write("m-00002-of-00002.gguf", add_embedding(twice).file());
  CHECK(error_of(folder) ==
        "tensor model.embed_tokens.weight is in DIR/m-00001-of-00002.gguf and again in "
        "DIR/m-00002-of-00002.gguf");
  std::filesystem::rename(folder.path("m-00001-of-00002.gguf"), folder.path("model.gguf"));
  CHECK(error_of(folder, "model.gguf") ==
        "DIR/model.gguf: the first of 2 parts: expected a name that ends in -00001-of-00002.gguf");
}

TEST_CASE("a folder of several models") {
  const TestFolder folder;
  for (const std::string name : {"a.gguf", "b.gguf"}) {
    GgufBuilder b = metadata_of("qwen3");
    folder.write(name, add_embedding(b).file());
  }
  CHECK(error_of(folder) ==
        "DIR: 2 .gguf files (a.gguf, b.gguf); pass the path of the one that is meant");
  CHECK(error_of(folder, "b.gguf") == "no error");
}

}  // namespace
}  // namespace nvllm::model
