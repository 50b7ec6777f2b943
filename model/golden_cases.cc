// Whole models against transformers' numbers, on any number of ranks: logits, hidden states and
// continuations of tests/data/golden-models, through a cache, in batches, in pieces, in a graph.
#include <doctest/doctest.h>

#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/testing/golden_check.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::model {
namespace {

using testing::DeviceRank;

constexpr const char* kModels[] = {"llama-dynamic", "llama-llama3", "llama-tied", "mistral-hd128",
                                   "qwen2-bias", "qwen2-linear", "qwen3-gqa-tied", "qwen3-uneven",
                                   "qwen3-yarn",
                                   // Layers with windows, and without.
                                   "qwen2-window", "gemma3-text",
                                   // Quantized: numbers of the dequantized weights.
                                   "llama-fp8-channel", "llama-fp8-tensor", "llama-gptq",
                                   "qwen3-awq", "qwen3-fp8-block", "qwen3-w4a16"};
constexpr const char* kQuantizedModels[] = {"llama-fp8-channel", "llama-fp8-tensor", "llama-gptq",
                                            "qwen3-awq",         "qwen3-fp8-block",  "qwen3-w4a16"};
// In bfloat16 moe_golden_cases.cc has them.
constexpr const char* kMixtures[] = {"mixtral", "qwen3moe-dense-layer", "qwen3moe-fp8",
                                     // With windows, sinks and biases.
                                     "gptoss-bf16", "gptoss-mxfp4"};
// Linear attention in three of four layers.
constexpr const char* kHybrids[] = {"qwen35-dense", "qwen35-moe", "qwen3next", "qwen35-moe-fp8"};
// Heads that differ by layer, keys and values of other layers, inputs of layers, experts beside an
// MLP, capped logits.
constexpr const char* kGemma4[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};

std::int64_t layers_of_model(const std::string& name) {
  const std::string folder = "tests/data/golden-models/" + name;
  return parse_config(open_checkpoint(folder).config_json(), "", folder).layers;
}

void are_right(int ranks, DType dtype) {
  RANKS_OR_SKIP(ranks);
  if (testing::kSanitized && (dtype == DType::f32 ? ranks % 2 == 0 : ranks > 2)) {
    SKIP_TEST("three ranks in float32, and two in 16 bits, have all that a sanitizer may find");
  }
  std::vector<std::string> models(std::begin(kModels), std::end(kModels));
  if (dtype == DType::f32) {
    models.insert(models.end(), std::begin(kMixtures), std::end(kMixtures));
    models.insert(models.end(), std::begin(kHybrids), std::end(kHybrids));
    models.insert(models.end(), std::begin(kGemma4), std::end(kGemma4));
  }
  testing::run_on_devices(ranks, [&](DeviceRank& rank) {
    for (const std::string& name : models) {
      GoldenCheck check(rank, name, dtype, {});
      CHECK(check.first_prompt() == "");
      CHECK(check.continuations() == "");
    }
  });
}

TEST_CASE("float32 on 1 rank: logits, hidden states and continuations are transformers'") {
  are_right(1, DType::f32);
}
TEST_CASE("float32 on 2 ranks: logits, hidden states and continuations are transformers'") {
  are_right(2, DType::f32);
}
TEST_CASE("float32 on 3 ranks: logits, hidden states and continuations are transformers'") {
  are_right(3, DType::f32);
}
TEST_CASE("float32 on 4 ranks: logits, hidden states and continuations are transformers'") {
  are_right(4, DType::f32);
}

// All but Gemma 4 with inputs of layers, which is in one stage (runtime/model/open_model.h).
void are_right_in_stages(int stages, int ranks) {
  RANKS_OR_SKIP(stages * ranks);
  if (testing::kSanitized && ranks == 1) {
    SKIP_TEST("stages of two ranks have all that a sanitizer may find");
  }
  std::vector<std::string> models(std::begin(kModels), std::end(kModels));
  models.insert(models.end(), std::begin(kMixtures), std::end(kMixtures));
  models.insert(models.end(), std::begin(kHybrids), std::end(kHybrids));
  if (testing::device_under_test() == DeviceKind::cpu) {
    models.insert(models.end(), {"gemma4-dense", "gemma4-moe"});
  }
  testing::run_in_stages(stages, ranks, [&](DeviceRank& rank) {
    for (const std::string& name : models) {
      if (layers_of_model(name) < stages) continue;
      GoldenCheck check(rank, name, DType::f32, {});
      CHECK(check.first_prompt() == "");
      CHECK(check.continuations() == "");
      CHECK(check.in_pieces() == "");
    }
  });
}

TEST_CASE("float32 in 2 stages: logits, hidden states and continuations are transformers'") {
  are_right_in_stages(2, 1);
}
TEST_CASE("float32 in 3 stages: logits, hidden states and continuations are transformers'") {
  are_right_in_stages(3, 1);
}
TEST_CASE("float32 in 2 stages of 2 ranks: logits and continuations are transformers'") {
  are_right_in_stages(2, 2);
}

TEST_CASE("two stages give the bits of the whole decoder") {
  if (testing::device_under_test() != DeviceKind::cpu) {
    SKIP_TEST("GPUs sum up a deferred RMSNorm in another order than one at the end of a stage");
  }
  testing::run_in_stages(2, 1, [&](DeviceRank& rank) {
    for (const char* name :
         {"qwen3-gqa-tied", "qwen2-bias", "gemma3-text", "mixtral", "qwen3next"}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto in_stages = GoldenCheck(rank, name, dtype, {}).last_logits();
        if (rank.stage == 0) continue;
        DeviceRank alone{.member = rank.member,
                         .backend = create_backend(DeviceKind::cpu),
                         .stream = nullptr,
                         .communicator = nullptr,
                         .link = nullptr};
        alone.stream = alone.backend->create_stream();
        CHECK(in_stages.size() == 3);
        CHECK((in_stages == GoldenCheck(alone, name, dtype, {}).last_logits()));
      }
    }
  });
}

TEST_CASE("without its dynamic scaling, a model is transformers' up to the original length") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [&](DeviceRank& rank) {
    GoldenCheck check(rank, "llama-dynamic", DType::f32, {.unstretched = true});
    CHECK(check.first_prompt() == "");
    CHECK(check.continuations() == "");
  });
}

TEST_CASE("bfloat16 on 1 rank: logits and tokens are as close as transformers' bfloat16") {
  are_right(1, DType::bf16);
}
TEST_CASE("bfloat16 on 2 ranks: logits and tokens are as close as transformers' bfloat16") {
  are_right(2, DType::bf16);
}
TEST_CASE("bfloat16 on 3 ranks: logits and tokens are as close as transformers' bfloat16") {
  are_right(3, DType::bf16);
}
TEST_CASE("bfloat16 on 4 ranks: logits and tokens are as close as transformers' bfloat16") {
  are_right(4, DType::bf16);
}

TEST_CASE("float16 on 2 ranks: logits and tokens are as close as transformers' bfloat16") {
  are_right(2, DType::f16);
}

TEST_CASE("quantized weights that stay so give the numbers of the dequantized ones") {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2, 3}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [&](DeviceRank& rank) {
      for (const char* name : kQuantizedModels) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          GoldenCheck check(rank, name, dtype, {.keep_quantized = true});
          CHECK(check.keeps_some());
          CHECK(check.first_prompt() == "");
          CHECK(check.continuations() == "");
        }
      }
      for (const char* name : {"qwen3moe-fp8", "gptoss-mxfp4", "qwen35-moe-fp8"}) {
        GoldenCheck check(rank, name, DType::f32, {.keep_quantized = true});
        // Experts of 64 in parts of 32 leave nothing for a third rank.
        CHECK((check.keeps_some() || rank.member.rank() == 2));
        CHECK(check.first_prompt() == "");
        CHECK(check.continuations() == "");
      }
    });
  }
}

// On 1 and 2 ranks.
template <typename Body>
void on_few_ranks(const Body& body) {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2}) {
    if (testing::why_no_ranks(ranks).empty()) testing::run_on_devices(ranks, body);
  }
}

TEST_CASE("a prompt in pieces gives the logits of the whole, in paged and contiguous memory") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* name : {"qwen3-uneven", "llama-llama3", "qwen2-window", "gemma3-text"}) {
      for (const bool paged : {true, false}) {
        CHECK(GoldenCheck(rank, name, DType::f32, {.paged = paged}).in_pieces() == "");
      }
    }
    for (const char* name : kMixtures) {
      for (const bool paged : {true, false}) {
        CHECK(GoldenCheck(rank, name, DType::f32, {.paged = paged}).in_pieces() == "");
      }
    }
  });
}

TEST_CASE("with whole experts on ranks mixtures are transformers', quantized or not") {
  for (const int ranks : {2, 3, 4}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [&](DeviceRank& rank) {
      for (const std::string name :
           {"mixtral", "qwen3moe-fp8", "gptoss-mxfp4", "qwen35-moe", "qwen35-moe-fp8"}) {
        const bool quantized = name.ends_with("fp8") || name.ends_with("mxfp4");
        GoldenCheck check(rank, name, DType::f32,
                          {.keep_quantized = quantized, .expert_parallel = true});
        CHECK(check.keeps_some() == quantized);
        CHECK(check.first_prompt() == "");
        CHECK(check.continuations() == "");
      }
    });
  }
}

TEST_CASE("linear attention: a prompt in pieces of any size gives the logits of the whole") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* name : kHybrids) {
      for (const std::size_t size : {1, 3, 7, 16}) {
        CHECK(GoldenCheck(rank, name, DType::f32, {.paged = size != 7}).in_pieces(size) == "");
      }
      CHECK(GoldenCheck(rank, name, DType::bf16, {}).in_a_graph() == "");
    }
  });
}

TEST_CASE("Gemma 4: a prompt in pieces of any size gives the logits of the whole") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* name : kGemma4) {
      for (const std::size_t size : {0, 3, 7, 16, 17}) {  // windows are of 16
        CHECK(GoldenCheck(rank, name, DType::f32, {.paged = size % 2 != 0}).in_pieces(size) == "");
      }
    }
  });
}

TEST_CASE("Gemma 4: in a graph, and with tuned GEMMs") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* name : kGemma4) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CHECK(GoldenCheck(rank, name, dtype, {}).in_a_graph() == "");
      }
      CHECK(GoldenCheck(rank, name, DType::f32, {}).tuned() == "");
    }
  });
}

TEST_CASE("models are right with tuned GEMMs") {
  on_few_ranks([](DeviceRank& rank) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const char* name : {"qwen3-gqa-tied", "gemma3-text"}) {
        CHECK(GoldenCheck(rank, name, dtype, {}).tuned() == "");
      }
    }
  });
}

// Other numbers of ranks have the same bits (tp_invariance_cases.cc).
TEST_CASE("with sums in the order of a tree over segments models are transformers'") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const auto check_model = [&](const char* name, DType dtype) {
      GoldenCheck check(rank, name, dtype, {.tp_invariant = true});
      CHECK(check.first_prompt() == "");
      CHECK(check.continuations() == "");
      CHECK(check.in_a_graph() == "");
    };
    for (const char* name : {"qwen3-uneven", "qwen2-bias", "gemma3-text"}) {
      for (const DType dtype : {DType::f32, DType::bf16}) check_model(name, dtype);
    }
    for (const char* name : {"mixtral", "gptoss-bf16", "qwen35-moe", "qwen3next", "gemma4-dense",
                             "gemma4-ple", "gemma4-moe"}) {
      check_model(name, DType::f32);
    }
  });
}

TEST_CASE("a captured step gives the bits of the same step at once") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* name : {"qwen3-uneven", "qwen2-bias", "qwen2-window", "gemma3-text"}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CHECK(GoldenCheck(rank, name, dtype, {}).in_a_graph() == "");
      }
    }
    for (const char* name : kMixtures)
      CHECK(GoldenCheck(rank, name, DType::bf16, {}).in_a_graph() == "");
  });
}

}  // namespace
}  // namespace nvllm::model
