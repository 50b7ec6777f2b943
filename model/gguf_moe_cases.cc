// GGUF files of each family that has some, made of golden models in safetensors: in floats they are
// the same model (golden_cases.cc compares those with transformers); weights that stay quantized
// give the answers of their dequantized ones. On any number of ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/text.h"
#include "model/decoder.h"
#include "model/loading/tensor_check.h"
#include "model/testing/gguf_conversion.h"
#include "model/testing/test_folder.h"
#include "model/testing/test_model.h"
#include "testing/device_ranks.h"

namespace nvllm::model {
namespace {

using testing::DeviceRank;
using Rows = std::vector<std::vector<float>>;

struct Prompt {
  std::vector<std::int32_t> ids, continuation;
  std::vector<float> margins;
};

std::string golden_folder(const std::string& name) {
  return "tests/data/golden-models/" + name;
}

std::vector<Prompt> prompts_of(const std::string& name) {
  std::ifstream file(golden_folder(name) + "/expected.json");
  std::vector<Prompt> prompts;
  const auto json = read_json(file);
  for (const auto& prompt : json["prompts"]) {
    prompts.push_back({prompt["ids"], prompt["continuation"], prompt["margins"]});
  }
  return prompts;
}

// The model of a folder in float32, with experts in slices or whole.
class Opened {
 public:
  struct How {
    bool expert_parallel = false, keep_quantized = false;
  };
  Opened(DeviceRank& rank, const std::string& path, std::int64_t tokens, How how)
      : checkpoint_(open_checkpoint(path)), model_(rank, config(path, how), shape(tokens, how)) {
    model_.load(checkpoint_);
  }

  bool keeps_some() const { return model_.decoder().quantized(); }

  // Logits of all positions of a prompt and its continuation.
  Rows logits(const Prompt& prompt) {
    std::vector<std::int32_t> tokens = prompt.ids;
    tokens.insert(tokens.end(), prompt.continuation.begin(), prompt.continuation.end());
    return model_.forward({{0, 0, tokens}}, TestModel::Logits::all);
  }

 private:
  ModelConfig config(const std::string& path, How how) const {
    ModelConfig config = parse_config(checkpoint_.config_json(), "", path);
    config.moe.expert_parallel = how.expert_parallel;
    return config;
  }
  TestModelShape shape(std::int64_t tokens, How how) const {
    return {.dtype = DType::f32,
            .tokens = tokens,
            .rows = tokens,
            .keep_quantized = how.keep_quantized ? &checkpoint_ : nullptr};
  }

  Checkpoint checkpoint_;
  TestModel model_;
};

float largest_difference(const Rows& a, const Rows& b) {
  float largest = 0;
  for (std::size_t row = 0; row < a.size(); ++row) {
    for (std::size_t i = 0; i < a[row].size(); ++i) {
      const float difference = std::fabs(a[row][i] - b[row][i]);
      if (!(difference <= largest)) largest = difference;  // a NaN, too
    }
  }
  return largest;
}

// Where transformers' token is ahead of the others, how many of the continuation are another.
int wrong_tokens(const Rows& rows, const Prompt& prompt, float margin) {
  int wrong = 0;
  for (std::size_t step = 0; step < prompt.continuation.size(); ++step) {
    const std::vector<float>& logits = rows[prompt.ids.size() - 1 + step];
    const auto best = std::ranges::max_element(logits) - logits.begin();
    wrong += best != prompt.continuation[step] && prompt.margins[step] > margin ? 1 : 0;
  }
  return wrong;
}

// A golden model as a GGUF file in a folder.
TestFolder converted(const std::string& name, const GgufConversion& conversion) {
  TestFolder folder;
  folder.write("model.gguf", gguf_of(open_checkpoint(golden_folder(name)), conversion));
  return folder;
}

// Whether the file has the tensors of its model and no other, but for those of layers that predict
// further tokens.
void has_all_tensors(const std::string& path, bool with_mtp) {
  const Checkpoint checkpoint = open_checkpoint(path);
  const ModelConfig config = parse_config(checkpoint.config_json(), "", path);
  Decoder whole(config, {}, DType::f32);
  const std::int64_t left_out = check_tensors(whole.parameters(), checkpoint, config);
  CHECK((left_out > 0) == with_mtp);
}

// `tolerance`: of logits; 0: bit by bit.
void is_the_same(const std::string& name, const GgufConversion& conversion, float tolerance = 0) {
  const TestFolder folder = converted(name, conversion);
  has_all_tensors(folder.path(), conversion.with_mtp);
  const Prompt prompt = prompts_of(name).front();
  const auto tokens = std::ssize(prompt.ids) + std::ssize(prompt.continuation);
  for (const int ranks : {1, 2, 3, 4}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [&](DeviceRank& rank) {
      const Opened::How how{.expert_parallel = ranks == 3, .keep_quantized = false};
      const Rows found = Opened(rank, folder.path(), tokens, how).logits(prompt);
      const Rows right = Opened(rank, golden_folder(name), tokens, how).logits(prompt);
      CAPTURE(name);
      CHECK(largest_difference(found, right) <= tolerance);
      CHECK(wrong_tokens(found, prompt, 0) == 0);
    });
  }
}

GgufType bf16(std::string_view name) {
  return name.find("exps") != std::string_view::npos ? GgufType::bf16 : GgufType::f32;
}

TEST_CASE("Qwen3-MoE with an MLP in one layer is the same model in a GGUF file") {
  RANKS_OR_SKIP(1);
  is_the_same("qwen3moe-dense-layer", {.type = bf16});
}

TEST_CASE("Mixtral is the same model in a GGUF file, also in one with a tensor for each expert") {
  RANKS_OR_SKIP(1);
  is_the_same("mixtral", {.type = bf16});
  is_the_same("mixtral", {.tensor_per_expert = true});
}

TEST_CASE("gpt-oss is the same model in a GGUF file, also with experts in MXFP4") {
  RANKS_OR_SKIP(1);
  is_the_same("gptoss-bf16", {.type = bf16});
  is_the_same("gptoss-mxfp4", {.type = [](std::string_view name) {
                return name.ends_with("exps.weight") ? GgufType::mxfp4 : GgufType::f32;
              }});
}

// Files have -exp() of a logarithm and the weights of norms whole: both are rounded.
constexpr float kHybridTolerance = 2e-5f;

TEST_CASE("Qwen3-Next is the same model in a GGUF file, by key head or not") {
  RANKS_OR_SKIP(1);
  is_the_same("qwen3next", {.type = bf16}, kHybridTolerance);
  is_the_same("qwen3next", {.type = bf16, .joint_qkvz = true}, kHybridTolerance);
}

TEST_CASE("Qwen3.5 is the same model in a GGUF file, also with layers that predict more tokens") {
  RANKS_OR_SKIP(1);
  is_the_same("qwen35-dense", {}, kHybridTolerance);
  is_the_same("qwen35-dense", {.with_mtp = true}, kHybridTolerance);
}

TEST_CASE("Qwen3.5 with experts is the same model in a GGUF file, with gate and up in one, too") {
  RANKS_OR_SKIP(1);
  is_the_same("qwen35-moe", {.type = bf16}, kHybridTolerance);
  is_the_same("qwen35-moe", {.type = bf16, .joint_gate_up = true}, kHybridTolerance);
}

TEST_CASE("dense Llama, Mistral, Qwen2 and Qwen3 are the same models in GGUF files") {
  RANKS_OR_SKIP(1);
  for (const char* const name : {"llama-tied", "mistral-hd128", "qwen2-bias", "qwen3-gqa-tied"}) {
    is_the_same(name, {});
  }
}

TEST_CASE("Gemma 3 is the same model in a GGUF file") {
  RANKS_OR_SKIP(1);
  is_the_same("gemma3-text", {}, kHybridTolerance);
}

TEST_CASE("Gemma 4 is the same model in a GGUF file, dense, with inputs of layers or experts") {
  RANKS_OR_SKIP(1);
  is_the_same("gemma4-dense", {});
  is_the_same("gemma4-ple", {});
  is_the_same("gemma4-moe", {.type = bf16});
  is_the_same("gemma4-moe", {.type = bf16, .joint_gate_up = true});
}

// Tensors whose name has `part` are of the type.
void stays_quantized(const std::string& name, GgufType type, const std::string& part = "exps") {
  const TestFolder folder = converted(name, {.type = [&](std::string_view tensor) {
                                        const bool is = tensor.find(part) != std::string_view::npos;
                                        return is ? type : GgufType::f32;
                                      }});
  const Prompt prompt = prompts_of(name).front();
  const auto tokens = std::ssize(prompt.ids) + std::ssize(prompt.continuation);
  for (const int ranks : {1, 2, 3}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [&](DeviceRank& rank) {
      for (const bool expert_parallel : {false, true}) {
        if (expert_parallel && ranks == 1) continue;
        Opened kept(rank, folder.path(), tokens, {expert_parallel, true});
        Opened dequantized(rank, folder.path(), tokens, {expert_parallel, false});
        CAPTURE(name);
        CAPTURE(ranks);
        CAPTURE(expert_parallel);
        CHECK_FALSE(dequantized.keeps_some());
        // Ranks may have no slice of an expert, and no key head.
        const bool may_have_none = rank.member.rank() > 0 && (!expert_parallel || part != "exps");
        CHECK((kept.keeps_some() || may_have_none));
        // Values and scales are exact, but for scales of 11 bits.
        CHECK(largest_difference(kept.logits(prompt), dequantized.logits(prompt)) < 2e-3f);
      }
    });
  }
}

TEST_CASE("projections of linear attention in GGUF files stay in Q8_0 and Q4_0") {
  RANKS_OR_SKIP(1);
  for (const char* const name : {"qwen3next", "qwen35-dense", "qwen35-moe"}) {
    stays_quantized(name, GgufType::q8_0, "ssm_out");
    stays_quantized(name, GgufType::q4_0, "attn_");
  }
}

TEST_CASE("experts of GGUF files stay in Q8_0, Q4_0 and MXFP4") {
  RANKS_OR_SKIP(1);
  stays_quantized("qwen3moe-dense-layer", GgufType::q8_0);
  stays_quantized("gptoss-bf16", GgufType::q4_0);
  stays_quantized("gptoss-mxfp4", GgufType::mxfp4);
}

TEST_CASE("an embedding and an LM head of GGUF files stay in Q8_0 and Q4_0, tied or not") {
  RANKS_OR_SKIP(1);
  for (const GgufType type : {GgufType::q8_0, GgufType::q4_0}) {
    stays_quantized("llama-tied", type, "token_embd");
    stays_quantized("qwen3-gqa-tied", type, "token_embd");
    stays_quantized("mistral-hd128", type, "token_embd");
    stays_quantized("mistral-hd128", type, "output.weight");
  }
}

}  // namespace
}  // namespace nvllm::model
