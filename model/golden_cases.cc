// Whole models against transformers' numbers, on any number of ranks: logits, hidden states and
// continuations of tests/data/golden-models, through a cache, in batches, in pieces, in a graph.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "model/testing/test_model.h"
#include "testing/golden.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::model {
namespace {

using testing::DeviceRank;
using Logits = TestModel::Logits;

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
constexpr std::int64_t kTokens = 224;  // of the longest prompt and its continuation, at least
constexpr std::int64_t kRows = 224;    // of the three prompts together, at least

struct Prompt {
  std::vector<std::int32_t> ids, continuation;
  std::vector<float> margins;
  std::vector<float> last_logits;
};

// What is expected of a model. With dynamic NTK scaling that is the one table for all lengths;
// `unstretched`: what transformers computes of the first prompt, which with its continuation is
// within the original length.
struct Expected {
  explicit Expected(const std::string& name, bool unstretched = false)
      : folder("tests/data/golden-models/" + name),
        tensors(testing::read_golden(folder + "/expected.safetensors")) {
    std::ifstream file(folder + "/expected.json");
    const auto json = read_json(file);
    dynamic = json.contains("static") && !unstretched;
    for (std::size_t i = 0; i < json["prompts"].size(); ++i) {
      const auto& run = dynamic ? json["static"][i] : json["prompts"][i];
      const std::string logits = str(dynamic ? "static." : "", "prompt", i, ".last_logits");
      prompts.push_back({json["prompts"][i]["ids"], run["continuation"], run["margins"],
                         tensors.at(logits).values});
    }
    if (unstretched) prompts.resize(1);
  }

  std::string folder;
  std::map<std::string, testing::GoldenTensor> tensors;
  bool dynamic;
  std::vector<Prompt> prompts;
};

// How far logits and hidden states may be off: see what transformers' own bfloat16 is off by,
// doubled.
struct Limits {
  float logits, logits_rms, hidden, margin;
};
Limits limits_of(DType dtype, bool keep_quantized) {
  // Offsets of weights that stay in INT4 are rounded to 11 bits: an eighth of what bfloat16 does to
  // weights. What has none (FP8, symmetric INT4) is exact.
  if (dtype == DType::f32 && keep_quantized) return {1e-2f, 2e-3f, 4e-3f, 0};
  if (dtype == DType::f32) return {1e-3f, 1e-3f, 2e-4f, 0};
  return {0.8f, 0.1f, 1e9f, 0.4f};  // hidden states are compared in float32 alone
}

// A model under test, and the first thing that is wrong with it.
class Check {
 public:
  struct How {
    bool paged = true;
    bool keep_quantized = false;  // weights that are so in the checkpoint
    bool unstretched = false;     // without RoPE scaling
    bool expert_parallel = false;
    bool tp_invariant = false;
  };
  Check(DeviceRank& rank, const std::string& name, DType dtype, const How& how)
      : name_(str(name, ' ', name_of(dtype), ' ', rank.member.size(), " ranks")),
        expected_(name, how.unstretched),
        limits_(limits_of(dtype, how.keep_quantized)),
        checkpoint_(open_checkpoint(expected_.folder)),
        model_(rank, config_of(how),
               {.dtype = dtype,
                .sequences = 3,
                .tokens = kTokens,
                .rows = kRows,
                .paged = how.paged,
                .tp_invariant = how.tp_invariant,
                .keep_quantized = how.keep_quantized ? &checkpoint_ : nullptr}) {
    model_.load(checkpoint_);
  }

  ModelConfig config_of(const How& how) const {
    ModelConfig config =
        parse_config(checkpoint_.config_json(), how.unstretched ? R"({"rope_scaling": null})" : "",
                     expected_.folder);
    config.moe.expert_parallel = how.expert_parallel;
    return config;
  }

  bool keeps_some() const { return model_.decoder().quantized(); }
  // All logits and hidden states of the first prompt.
  std::string first_prompt();
  // Prompts together, then token by token, together; the expected tokens are given, whatever was
  // chosen.
  std::string continuations();
  // The last prompt in pieces of this size; 0: of many.
  std::string in_pieces(std::size_t size = 0);
  // The last logits of the prompts together; none on stages without the head.
  std::vector<std::vector<float>> last_logits() { return model_.forward(prompts(), Logits::last); }
  // A step of all sequences as a graph: the bits of the same at once.
  std::string in_a_graph();
  // Every GEMM configuration that tuning can choose must be as right as the untuned one.
  std::string tuned() {
    model_.tune(prompts(), Logits::all);
    model_.tune({prompts()[0]}, Logits::last);
    const std::string wrong = first_prompt();
    return wrong.empty() ? continuations() : wrong;
  }

 private:
  std::string compare(const std::string& what, const std::vector<float>& got,
                      const std::vector<float>& right, float limit, float limit_rms) const;
  std::string compare_logits(const std::string& what, const std::vector<float>& got,
                             const std::vector<float>& right) const {
    return compare(what, got, right, limits_.logits, limits_.logits_rms);
  }
  TestModel::Parts prompts() const;

  std::string name_;
  Expected expected_;
  Limits limits_;
  Checkpoint checkpoint_;
  TestModel model_;
};

std::string Check::compare(const std::string& what, const std::vector<float>& got,
                           const std::vector<float>& right, float limit, float limit_rms) const {
  if (got.size() != right.size()) {
    return str(name_, ", ", what, ": ", got.size(), " values, not ", right.size());
  }
  double squares = 0;
  float worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float difference = std::fabs(got[i] - right[i]);
    worst = std::max(worst, difference);  // a NaN shows in the sum
    squares += difference * difference;
  }
  const double rms = std::sqrt(squares / static_cast<double>(got.size()));
  if (worst <= limit && rms <= limit_rms) return {};
  return str(name_, ", ", what, ": off by ", worst, ", rms ", rms, "; allowed: ", limit, ", rms ",
             limit_rms);
}

TestModel::Parts Check::prompts() const {
  TestModel::Parts parts;
  for (std::size_t i = 0; i < expected_.prompts.size(); ++i) {
    parts.push_back({static_cast<std::int64_t>(i), 0, expected_.prompts[i].ids});
  }
  return parts;
}

std::string Check::first_prompt() {
  if (expected_.dynamic) return {};  // these numbers are of another table
  const auto golden = [&](const std::string& name) {
    return expected_.tensors.at("prompt0." + name).values;
  };
  const std::string last = str("layer", model_.decoder().config().layers - 1);
  std::string wrong;
  const auto look = [&](std::string_view what, TensorView hidden) {
    for (const auto& [ours, theirs] : {std::pair<std::string, std::string>{"embed", "hidden.embed"},
                                       {"layer0", "hidden.layer0"},
                                       {last, "hidden.last"},
                                       {"norm", "hidden.norm"}}) {
      if (what != ours || !wrong.empty()) continue;
      wrong =
          compare(theirs, model_.values(hidden), golden(theirs), limits_.hidden, limits_.hidden);
    }
  };
  std::vector<float> logits;
  for (const auto& row : model_.forward({prompts()[0]}, Logits::all, look)) {
    logits.insert(logits.end(), row.begin(), row.end());
  }
  if (!wrong.empty() || !model_.decoder().has_head()) return wrong;
  return compare_logits("logits", logits, golden("logits"));
}

std::string Check::continuations() {
  TestModel::Parts parts = prompts();
  for (std::size_t step = 0; step < expected_.prompts[0].continuation.size(); ++step) {
    const auto logits = model_.forward(parts, Logits::last);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Prompt& prompt = expected_.prompts[i];
      parts[i].begin += static_cast<std::int64_t>(parts[i].tokens.size());
      parts[i].tokens = {prompt.continuation[step]};
      if (!model_.decoder().has_head()) continue;
      if (step == 0) {
        const std::string wrong =
            compare_logits(str("last logits ", i), logits[i], prompt.last_logits);
        if (!wrong.empty()) return wrong;
      }
      const auto best = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin();
      if (best != prompt.continuation[step] && prompt.margins[step] > limits_.margin) {
        return str(name_, ", prompt ", i, " step ", step, ": token ", best, ", not ",
                   prompt.continuation[step], ", of margin ", prompt.margins[step]);
      }
    }
  }
  return {};
}

std::string Check::in_pieces(std::size_t size) {
  const Prompt& prompt = expected_.prompts.back();
  std::vector<std::vector<float>> logits;
  std::size_t at = 0;
  for (std::size_t piece = 1; at < prompt.ids.size(); piece = piece * 3 + 2) {
    const std::size_t end = std::min(at + (size > 0 ? size : piece), prompt.ids.size());
    // Contiguous memory has its sequences in order.
    logits = model_.forward(
        {{0, static_cast<std::int64_t>(at), {prompt.ids.begin() + at, prompt.ids.begin() + end}}},
        Logits::last);
    at = end;
  }
  if (!model_.decoder().has_head()) return {};
  return compare_logits("in pieces", logits[0], prompt.last_logits);
}

std::string Check::in_a_graph() {
  TestModel::Parts parts = prompts();
  const TestModel::Parts before = parts;
  model_.forward(before, Logits::none);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].begin = static_cast<std::int64_t>(parts[i].tokens.size());
    parts[i].tokens = {expected_.prompts[i].continuation[0]};
  }
  const auto eager = model_.forward(parts, Logits::last);
  model_.forward(before, Logits::none);  // states of linear attention as they were
  const auto replayed = model_.forward_in_graph(parts, Logits::last);
  for (std::size_t i = 0; i < eager.size(); ++i) {
    if (std::memcmp(eager[i].data(), replayed[i].data(), eager[i].size() * sizeof(float)) != 0) {
      return str(name_, ": other logits in a graph, sequence ", i);
    }
  }
  return {};
}

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
      Check check(rank, name, dtype, {});
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
      Check check(rank, name, DType::f32, {});
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
        const auto in_stages = Check(rank, name, dtype, {}).last_logits();
        if (rank.stage == 0) continue;
        DeviceRank alone{.member = rank.member,
                         .backend = create_backend(DeviceKind::cpu),
                         .stream = nullptr,
                         .communicator = nullptr,
                         .link = nullptr};
        alone.stream = alone.backend->create_stream();
        CHECK(in_stages.size() == 3);
        CHECK((in_stages == Check(alone, name, dtype, {}).last_logits()));
      }
    }
  });
}

TEST_CASE("without its dynamic scaling, a model is transformers' up to the original length") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [&](DeviceRank& rank) {
    Check check(rank, "llama-dynamic", DType::f32, {.unstretched = true});
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
          Check check(rank, name, dtype, {.keep_quantized = true});
          CHECK(check.keeps_some());
          CHECK(check.first_prompt() == "");
          CHECK(check.continuations() == "");
        }
      }
      for (const char* name : {"qwen3moe-fp8", "gptoss-mxfp4", "qwen35-moe-fp8"}) {
        Check check(rank, name, DType::f32, {.keep_quantized = true});
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
        CHECK(Check(rank, name, DType::f32, {.paged = paged}).in_pieces() == "");
      }
    }
    for (const char* name : kMixtures) {
      for (const bool paged : {true, false}) {
        CHECK(Check(rank, name, DType::f32, {.paged = paged}).in_pieces() == "");
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
        Check check(rank, name, DType::f32, {.keep_quantized = quantized, .expert_parallel = true});
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
        CHECK(Check(rank, name, DType::f32, {.paged = size != 7}).in_pieces(size) == "");
      }
      CHECK(Check(rank, name, DType::bf16, {}).in_a_graph() == "");
    }
  });
}

TEST_CASE("Gemma 4: a prompt in pieces of any size gives the logits of the whole") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* name : kGemma4) {
      for (const std::size_t size : {0, 3, 7, 16, 17}) {  // windows are of 16
        CHECK(Check(rank, name, DType::f32, {.paged = size % 2 != 0}).in_pieces(size) == "");
      }
    }
  });
}

TEST_CASE("Gemma 4: in a graph, and with tuned GEMMs") {
  on_few_ranks([](DeviceRank& rank) {
    for (const char* name : kGemma4) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CHECK(Check(rank, name, dtype, {}).in_a_graph() == "");
      }
      CHECK(Check(rank, name, DType::f32, {}).tuned() == "");
    }
  });
}

TEST_CASE("models are right with tuned GEMMs") {
  on_few_ranks([](DeviceRank& rank) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const char* name : {"qwen3-gqa-tied", "gemma3-text"}) {
        CHECK(Check(rank, name, dtype, {}).tuned() == "");
      }
    }
  });
}

// Other numbers of ranks have the same bits (tp_invariance_cases.cc).
TEST_CASE("with sums in the order of a tree over segments models are transformers'") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const auto check_model = [&](const char* name, DType dtype) {
      Check check(rank, name, dtype, {.tp_invariant = true});
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
        CHECK(Check(rank, name, dtype, {}).in_a_graph() == "");
      }
    }
    for (const char* name : kMixtures) CHECK(Check(rank, name, DType::bf16, {}).in_a_graph() == "");
  });
}

}  // namespace
}  // namespace nvllm::model
