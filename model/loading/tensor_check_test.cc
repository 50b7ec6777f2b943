#include "model/loading/tensor_check.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/testing/safetensors_builder.h"
#include "model/testing/test_folder.h"

namespace nvllm::model {
namespace {

// The shape of both tensors of a model: one layer has one tensor, and there is an embedding.
const std::vector<std::int64_t> kShape = {6, 4};

ModelConfig config_of(bool tied) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.layers = 1;
  config.tied_embeddings = tied;
  return config;
}

// What check_tensors says of a file with these tensors, all of one shape.
std::string verdict(const std::vector<std::string>& stored, const ModelConfig& config,
                    const std::vector<std::int64_t>& shape = kShape) {
  layers::Parameter first, second;
  first.slices = {{"model.embed_tokens.weight", kShape, {0, 6}, {0, 4}, 0}};
  second.slices = {{"model.layers.0.mlp.up_proj.weight", kShape, {0, 6}, {0, 4}, 0}};
  layers::Parameter* const parameters[] = {&first, &second};
  std::vector<StoredTensor> tensors;
  for (const std::string& name : stored) {
    StoredTensor tensor;
    tensor.name = tensor.stored_name = name;
    tensor.shape = shape;
    tensors.push_back(tensor);
  }
  std::vector<CheckpointFile> files;
  files.emplace_back("a.safetensors", UniqueFd(), 1000);
  try {
    const std::int64_t skipped =
        check_tensors(parameters, Checkpoint(std::move(files), std::move(tensors), ""), config);
    return skipped == 0 ? "fine" : str(skipped, " skipped");
  } catch (const Error& error) {
    return error.what();
  }
}
std::string verdict(const std::vector<std::string>& stored, bool tied = false,
                    const std::vector<std::int64_t>& shape = kShape) {
  return verdict(stored, config_of(tied), shape);
}

const std::vector<std::string> kWhole = {"model.embed_tokens.weight",
                                         "model.layers.0.mlp.up_proj.weight"};

std::string verdict_with(const std::string& more, bool tied = false) {
  std::vector<std::string> stored = kWhole;
  stored.push_back(more);
  return verdict(stored, tied);
}

// What check_tensors says of a GPTQ file with a bias that the configuration does not know.
std::string verdict_with_bias(const std::vector<float>& bias) {
  SafetensorsBuilder files;
  files.set_config(R"({"quantization_config":{"quant_method":"gptq","bits":4}})");
  files.set("m.qweight", "I32", {4, 16}, std::vector<std::int32_t>(64));
  files.set("m.qzeros", "I32", {2, 2}, std::vector<std::int32_t>(4));
  files.set("m.scales", "F32", {2, 16}, std::vector<float>(32, 1));
  files.set("m.bias", "F32", {static_cast<std::int64_t>(bias.size())}, bias);
  const TestFolder folder;
  files.write(folder);
  layers::Parameter weight;
  weight.slices = {{"m.weight", {16, 32}, {0, 16}, {0, 32}, 0}};
  layers::Parameter* const parameters[] = {&weight};
  try {
    check_tensors(parameters, open_checkpoint(folder.path()), config_of(false));
    return "fine";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a whole checkpoint is fine") {
  CHECK(verdict(kWhole) == "fine");
}

TEST_CASE("a missing tensor and one of another shape are named with file and shapes") {
  CHECK(verdict({kWhole[0]}) ==
        "a.safetensors: expected a tensor model.layers.0.mlp.up_proj.weight [6, 4], found none "
        "among 1");
  CHECK(verdict(kWhole, false, {4, 6}) ==
        "a.safetensors: tensor model.embed_tokens.weight: expected shape [6, 4], found [4, 6]");
}

TEST_CASE("a tensor too many is named, with what may be wrong") {
  CHECK(verdict_with("model.layers.1.mlp.up_proj.weight") ==
        "a.safetensors: tensor model.layers.1.mlp.up_proj.weight is one too many; the "
        "configuration has num_hidden_layers 1");
  CHECK(verdict_with("model.layers.0.mlp.up_proj.bias") ==
        "a.safetensors: tensor model.layers.0.mlp.up_proj.bias is one too many; the configuration "
        "says that there is no such bias");
  CHECK(verdict_with("model.layers.0.mlp.up_proj.qweight") ==
        "a.safetensors: tensor model.layers.0.mlp.up_proj.qweight is one too many; a "
        "LlamaForCausalLM has no such tensor");
  CHECK(verdict_with("model.layers.99999999999999999999.x").ends_with("has no such tensor"));
  CHECK(verdict_with("model.layers.").ends_with("has no such tensor"));
}

TEST_CASE("what older programs stored beside the weights may be there") {
  CHECK(verdict_with("model.layers.0.self_attn.rotary_emb.inv_freq") == "fine");
  CHECK(verdict_with("model.rotary_emb.inv_freq") == "fine");
}

TEST_CASE("beside a quantized weight a bias of zeros may be there, and no other") {
  std::vector<float> bias(16);
  CHECK(verdict_with_bias(bias) == "fine");
  bias[15] = 1e-30f;
  CHECK(verdict_with_bias(bias).find("m.bias is one too many") != std::string::npos);
  CHECK(verdict_with_bias(std::vector<float>(15)).find("m.bias is one too many") !=
        std::string::npos);
}

TEST_CASE("what a multimodal model sees with is skipped where the model is its text part alone") {
  std::vector<std::string> stored = kWhole;
  for (const char* name :
       {"vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
        "multi_modal_projector.mm_soft_emb_norm.weight", "model.vision_tower.a.weight",
        "model.multi_modal_projector.b.weight", "model.visual.blocks.0.norm1.weight",
        "model.embed_vision.embedding_projection.weight", "model.audio_tower.layers.0.a.weight",
        "model.embed_audio.embedding_projection.weight"}) {
    stored.emplace_back(name);
  }
  CHECK(verdict(stored).find("is one too many; a LlamaForCausalLM has no such tensor") !=
        std::string::npos);
  ModelConfig config = config_of(false);
  config.text_part = true;
  CHECK(verdict(stored, config) == "8 skipped");
  stored.emplace_back("audio_tower.weight");
  CHECK(verdict(stored, config).find("audio_tower.weight is one too many") != std::string::npos);
}

TEST_CASE("layers that predict further tokens are skipped where the family has some") {
  std::vector<std::string> stored = kWhole;
  stored.emplace_back("mtp.layers.0.input_layernorm.weight");
  ModelConfig config = config_of(false);
  CHECK(verdict(stored, config).find("mtp.layers.0.input_layernorm.weight is one too many") !=
        std::string::npos);
  config.skips_mtp = true;
  CHECK(verdict(stored, config) == "1 skipped");
}

TEST_CASE("a head of its own may be there where it is tied, and nowhere else") {
  CHECK(verdict_with("lm_head.weight", true) == "fine");
  CHECK(verdict_with("lm_head.weight", false).find("lm_head.weight is one too many") !=
        std::string::npos);
}

}  // namespace nvllm::model
