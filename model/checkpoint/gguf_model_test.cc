// GGUF files as models: names, order of rows, configuration, parts.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf_family.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {
namespace {

using Json = nlohmann::json;

// The first element of each row of a float32 tensor, in the tensor's own order.
std::vector<float> first_column(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  std::vector<float> column;
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
    float value = 0;
    const bool vector = tensor.shape.size() == 1 && tensor.column_order;
    const auto at = static_cast<std::uint64_t>(vector ? tensor.column_order->stored(row)
                                                      : tensor.stored_row(row));
    read_at(checkpoint.files()[tensor.file], tensor.offset + at * tensor.row_bytes(),
            std::as_writable_bytes(std::span(&value, 1)));
    column.push_back(value);
  }
  return column;
}

std::string name_in(const std::string& architecture, std::string_view stored,
                    std::uint64_t experts = 0) {
  GgufMetadata metadata("FILE");
  metadata.insert("general.architecture", architecture);
  metadata.insert(architecture + ".expert_count", experts);
  return hugging_face_name(stored, gguf_family(metadata), 1000).value_or("-");
}

TEST_CASE("every name has one in Hugging Face's spelling") {
  const auto name = [](std::string_view stored) { return name_in("llama", stored); };
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

TEST_CASE("the configuration of a gemma3, whose norms are whole, and its names") {
  GgufBuilder b = metadata_of("gemma3");
  b.u32("gemma3.attention.key_length", 4).u32("gemma3.attention.sliding_window", 64);
  b.f32("gemma3.rope.freq_base", 1e6f);
  b.text("gemma3.rope.scaling.type", "linear").f32("gemma3.rope.scaling.factor", 8);
  CHECK(config_of(add_embedding(b)) == parse_json(R"({
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 8,
    "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 3, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": true,
    "attention_bias": false, "torch_dtype": "float32", "rope_theta": 1000000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 4,
    "norm_weight_offset": 0, "sliding_window": 64, "rope_local_base_freq": 10000.0})"));
  const auto name = [](std::string_view stored) { return name_in("gemma3", stored); };
  CHECK(name("blk.3.post_attention_norm.weight") ==
        "model.layers.3.post_attention_layernorm.weight");
  CHECK(name("blk.3.ffn_norm.weight") == "model.layers.3.pre_feedforward_layernorm.weight");
  CHECK(name("blk.3.post_ffw_norm.weight") == "model.layers.3.post_feedforward_layernorm.weight");
  CHECK(name("blk.3.attn_norm.weight") == "model.layers.3.input_layernorm.weight");
  CHECK(name_in("llama", "blk.3.post_ffw_norm.weight") == "-");
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

TEST_CASE("tokens that end an answer: those that a file names, and others by their texts") {
  const auto ends_of = [](const std::string& architecture, const std::vector<std::string>& tokens) {
    GgufBuilder b = metadata_of(architecture);
    if (architecture == "gemma3") b.u32("gemma3.attention.sliding_window", 64);
    b.u32("tokenizer.ggml.eos_token_id", 1).texts("tokenizer.ggml.tokens", tokens);
    return config_of(add_embedding(b))["eos_token_id"];
  };
  CHECK(ends_of("gemma3", {"<pad>", "<eos>", "<bos>", "<end_of_turn>"}) == parse_json("[1, 3]"));
  CHECK(ends_of("gemma3", {"<eos>", "<end_of_turn>", "<|im_end|>"}) == parse_json("[1, 0]"));
  CHECK(ends_of("llama", {"<|eom_id|>", "<|end_of_text|>", "<|eot_id|>", "<end_of_turn>"}) ==
        parse_json("[1, 2, 0]"));
  CHECK(ends_of("qwen3", {"a", "<|endoftext|>", "<|im_start|>", "<|im_end|>"}) ==
        parse_json("[1, 3]"));
  CHECK(ends_of("qwen2", {"a", "b"}) == 1);
  GgufBuilder b = metadata_of("llama");
  b.u32("tokenizer.ggml.eos_token_id", 2).u32("tokenizer.ggml.eom_token_id", 5);
  b.raw("tokenizer.ggml.eot_token_id", 5, GgufBuilder::bytes_of(std::int32_t{-1}));
  b.numbers("tokenizer.ggml.eos_token_ids", {2, -1, 7});
  CHECK(config_of(add_embedding(b))["eos_token_id"] == parse_json("[2, 5, 7]"));
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

TEST_CASE("models that are not supported are refused by name") {
  const std::string where = "DIR/model.gguf: ";
  CHECK(error_of_file(GgufBuilder()) == where + "metadata general.architecture is missing");
  GgufBuilder gemma = metadata_of("gemma2");
  CHECK(error_of_file(add_embedding(gemma)) ==
        where +
            "general.architecture: expected llama, qwen2, qwen3, qwen3moe, gemma3, gemma4, "
            "gpt-oss, qwen3next, qwen35 or qwen35moe, found gemma2");

  const auto error_with_u32 = [](const std::string& key, std::uint32_t value) {
    GgufBuilder b = metadata_of("llama");
    b.u32(key, value);
    return error_of_file(add_embedding(b));
  };
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
                                      "llama, found a name unknown here");
  GgufBuilder odd = b;
  odd.counting("blk.0.attn_q.weight", {8, 6});
  CHECK(error_of_file(odd) ==
        where +
            "tensor blk.0.attn_q.weight: expected rows of 2 heads, an even number each, found 6");
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
