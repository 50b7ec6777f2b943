// benchmarks/make_checkpoint writes checkpoints that open, with all tensors that they need.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/testing/test_folder.h"

namespace nvllm::model {
namespace {

// Columns are whole blocks of 256, except those of mlp.down_proj.
std::string config_of(const std::string& model_type) {
  return R"({"model_type": ")" + model_type + R"(", "hidden_size": 256, "intermediate_size": 96,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 64, "vocab_size": 50, "rms_norm_eps": 1e-6,
             "max_position_embeddings": 64, "attention_bias": true,
             "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
             "mlp_only_layers": [1], "num_local_experts": 3)" +
         (model_type == "gpt_oss" ? R"(, "quantization_config": {"quant_method": "mxfp4"}})" : "}");
}

TestFolder made(const std::string& model_type, const std::string& options) {
  TestFolder folder;
  folder.write("input.json", config_of(model_type));
  const std::string command = "benchmarks/make_checkpoint --config " + folder.path("input.json") +
                              " --out " + folder.path("model") + " " + options;
  REQUIRE(std::system(command.c_str()) == 0);
  return folder;
}

std::vector<float> values_of(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes);
  read_at(checkpoint.files()[tensor.file], tensor.offset, bytes);
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= size;
  std::vector<float> values(static_cast<std::size_t>(elements));
  decode(tensor.encoding, bytes.data(), elements, DType::f32, values.data());
  return values;
}

// All finite, not all the same, none large.
void check_values(const Checkpoint& checkpoint) {
  for (const auto& item : checkpoint.tensors()) {
    const StoredTensor& tensor = item.second;
    CAPTURE(tensor.name);
    float smallest = 1e9f, largest = -1e9f;
    for (const float value : values_of(checkpoint, tensor)) {
      REQUIRE(std::isfinite(value));
      smallest = std::min(smallest, value);
      largest = std::max(largest, value);
    }
    if (tensor.name.find("norm") != std::string::npos) {
      CHECK(smallest == 1);
      CHECK(largest == 1);
    } else {
      CHECK(smallest < 0);
      CHECK(largest > 0);
      CHECK(std::max(-smallest, largest) < 0.25f);
    }
  }
}

TEST_CASE("safetensors in one file and in several hold the same tensors") {
  for (const std::string dtype : {"bfloat16", "float16", "float32"}) {
    for (const int shards : {1, 3}) {
      CAPTURE(dtype);
      CAPTURE(shards);
      const TestFolder folder =
          made("qwen3", "--dtype " + dtype + " --shards " + std::to_string(shards));
      const Checkpoint checkpoint = open_checkpoint(folder.path("model"));
      CHECK(checkpoint.files().size() == static_cast<std::size_t>(shards));
      CHECK(checkpoint.tensors().size() == 2 * 15 + 3);  // qwen3 with attention_bias
      (void)checkpoint.get("model.embed_tokens.weight", {50, 256});
      (void)checkpoint.get("model.layers.1.self_attn.k_norm.weight", {64});
      (void)checkpoint.get("model.layers.1.self_attn.o_proj.bias", {256});
      (void)checkpoint.get("model.layers.1.mlp.down_proj.weight", {256, 96});
      (void)checkpoint.get("lm_head.weight", {50, 256});
      CHECK(checkpoint.config_json().find("\"torch_dtype\": \"" + dtype) != std::string::npos);
      check_values(checkpoint);
    }
  }
}

TEST_CASE(
    "FP8: linear layers alone, experts too, have values in 8 bits with a scale for each block") {
  for (const std::string type : {"qwen3", "qwen3_moe"}) {
    CAPTURE(type);
    const TestFolder folder = made(type, "--fp8 --shards 2");
    const Checkpoint checkpoint = open_checkpoint(folder.path("model"));
    const std::string up = type == "qwen3" ? "mlp.up_proj" : "mlp.experts.2.up_proj";
    const std::int64_t outputs = type == "qwen3" ? 96 : 64;
    for (const StoredTensor* tensor :
         {&checkpoint.get("model.layers.0." + up + ".weight", {outputs, 256}),
          &checkpoint.get("model.layers.1.self_attn.q_proj.weight", {256, 256})}) {
      CAPTURE(tensor->name);
      CHECK(tensor->encoding == Encoding::f8_e4m3);
      CHECK(tensor->quantized != nullptr);
      for (const float value : values_of(checkpoint, *tensor)) CHECK(std::fabs(value) < 2);
    }
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      CHECK(checkpoint.get(name, {50, 256}).encoding == Encoding::bf16);
    }
  }
}

TEST_CASE("gpt-oss has its experts in MXFP4") {
  const TestFolder folder = made("gpt_oss", "");
  const Checkpoint checkpoint = open_checkpoint(folder.path("model"));
  const StoredTensor& gate =
      checkpoint.get("model.layers.1.mlp.experts.2.gate_proj.weight", {96, 256});
  CHECK(gate.encoding == Encoding::mxfp4);
  (void)checkpoint.get("model.layers.0.mlp.experts.0.down_proj.weight", {256, 96});
  (void)checkpoint.get("model.layers.0.mlp.experts.0.down_proj.bias", {256});
  (void)checkpoint.get("model.layers.0.mlp.router.bias", {3});
  (void)checkpoint.get("model.layers.0.self_attn.sinks", {4});
}

TEST_CASE("GGUF of a mixture has all experts of a layer in one tensor") {
  const TestFolder folder = made("qwen3_moe", "--gguf mxfp4");
  const Checkpoint checkpoint = open_checkpoint(folder.path("model"));
  const StoredTensor& down =
      checkpoint.get("model.layers.0.mlp.experts.2.down_proj.weight", {256, 64});
  CHECK(down.encoding == Encoding::mxfp4_blocks);
  CHECK(down.stored_name == "blk.0.ffn_down_exps.weight");
  (void)checkpoint.get("model.layers.0.mlp.experts.0.up_proj.weight", {64, 256});
  CHECK(checkpoint.get("model.layers.0.mlp.gate.weight", {3, 256}).encoding == Encoding::f32);
  (void)checkpoint.get("model.layers.1.mlp.up_proj.weight", {96, 256});
  check_values(checkpoint);
}

TEST_CASE("GGUF of every type") {
  for (const Encoding encoding : {Encoding::f32, Encoding::f16, Encoding::bf16, Encoding::q8_0,
                                  Encoding::q4_0, Encoding::q4_1, Encoding::q5_0, Encoding::q5_1,
                                  Encoding::q4_k, Encoding::q5_k, Encoding::q6_k}) {
    std::string type = name_of(encoding);
    for (char& c : type) c = static_cast<char>(std::tolower(c));
    CAPTURE(type);
    const TestFolder folder = made("qwen2", "--gguf " + type);
    const Checkpoint checkpoint = open_checkpoint(folder.path("model"));
    CHECK(checkpoint.tensors().size() == 2 * 12 + 3);
    CHECK(checkpoint.get("model.layers.0.mlp.up_proj.weight", {96, 256}).encoding == encoding);
    (void)checkpoint.get("model.layers.0.self_attn.q_proj.bias", {256});
    (void)checkpoint.get("model.layers.0.mlp.down_proj.weight", {256, 96});
    check_values(checkpoint);
  }
}

}  // namespace
}  // namespace nvllm::model
