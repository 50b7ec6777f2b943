// Mixtures of experts in bfloat16 against transformers' numbers in float32. Roundings let some rows
// choose other experts, in transformers, too, and these rows' logits are far off: so what is
// compared is the root mean square, the median of the positions and the share of the tokens.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/text.h"
#include "model/testing/test_model.h"
#include "testing/device_ranks.h"
#include "testing/golden.h"

namespace nvllm::model {
namespace {

using testing::DeviceRank;
using Rows = std::vector<std::vector<float>>;

constexpr std::int64_t kTokens = 224;  // of the longest prompt and its continuation, at least

struct Prompt {
  std::vector<std::int32_t> ids, continuation;
  std::vector<float> margins;
  float rms = 0;  // of transformers' own bfloat16
};

class Mixture {
 public:
  Mixture(DeviceRank& rank, const std::string& name, bool keep_quantized)
      : folder_("tests/data/golden-models/" + name),
        checkpoint_(open_checkpoint(folder_)),
        model_(rank, parse_config(checkpoint_.config_json(), "", folder_),
               {.dtype = DType::bf16,
                .tokens = kTokens,
                .rows = kTokens,
                .keep_quantized = keep_quantized ? &checkpoint_ : nullptr}) {
    model_.load(checkpoint_);
    std::ifstream file(folder_ + "/expected.json");
    const auto json = read_json(file);
    for (const auto& prompt : json["prompts"]) {
      prompts_.push_back({prompt["ids"], prompt["continuation"], prompt["margins"],
                          prompt["bfloat16"]["rms_logit_diff"]});
    }
  }

  bool keeps_some() const { return model_.decoder().quantized(); }

  // What is wrong; "": nothing.
  std::string compare() {
    if (prompts_.empty()) return "no prompts";
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const Prompt& prompt = prompts_[i];
      std::vector<std::int32_t> tokens = prompt.ids;
      tokens.insert(tokens.end(), prompt.continuation.begin(), prompt.continuation.end());
      const Rows rows = model_.forward({{0, 0, tokens}}, TestModel::Logits::all);
      std::string wrong = i == 0 ? compare_logits(rows, prompt) : "";
      if (wrong.empty()) wrong = compare_tokens(rows, prompt);
      if (!wrong.empty()) return str("prompt ", i, ": ", wrong);
    }
    return {};
  }

 private:
  // Of the first prompt, of which there are all logits.
  std::string compare_logits(const Rows& rows, const Prompt& prompt) const {
    const auto golden =
        testing::read_golden(folder_ + "/expected.safetensors").at("prompt0.logits").values;
    const std::size_t columns = rows.front().size();
    std::vector<float> largest;
    double squares = 0;
    for (std::size_t row = 0; row < prompt.ids.size(); ++row) {
      float worst = 0;
      for (std::size_t i = 0; i < columns; ++i) {
        const float difference = std::fabs(rows[row][i] - golden.at(row * columns + i));
        worst = std::max(worst, difference);  // a NaN shows in the sum
        squares += difference * difference;
      }
      largest.push_back(worst);
    }
    const double rms = std::sqrt(squares / static_cast<double>(golden.size()));
    if (!(rms <= 2 * prompt.rms)) return str("rms ", rms, ", transformers' ", prompt.rms);
    std::ranges::sort(largest);
    const float median = largest[largest.size() / 2];
    return median < 0.7f ? "" : str("at the median position off by ", median);
  }

  // Where one token is ahead of the others, at least 9 of 10 must be it.
  static std::string compare_tokens(const Rows& rows, const Prompt& prompt) {
    int clear = 0, right = 0;
    for (std::size_t step = 0; step < prompt.continuation.size(); ++step) {
      if (prompt.margins[step] <= 0.4f) continue;
      const std::vector<float>& logits = rows[prompt.ids.size() - 1 + step];
      const auto best = std::ranges::max_element(logits) - logits.begin();
      ++clear;
      right += best == prompt.continuation[step];
    }
    return right * 10 >= clear * 9 ? "" : str(right, " of ", clear, " tokens");
  }

  std::string folder_;
  Checkpoint checkpoint_;
  TestModel model_;
  std::vector<Prompt> prompts_;
};

TEST_CASE("bfloat16 on 1 to 4 ranks: logits and tokens are as close as transformers' bfloat16") {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2, 3, 4}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      for (const char* name :
           {"mixtral", "qwen3moe-dense-layer", "qwen3moe-fp8", "gptoss-bf16", "gptoss-mxfp4"}) {
        const std::string model = name;
        CAPTURE(model);
        CHECK(Mixture(rank, name, false).compare() == "");
      }
    });
  }
}

TEST_CASE("bfloat16 with weights that stay in FP8 or MXFP4, on 1 to 3 ranks") {
  if (testing::device_under_test() != DeviceKind::cpu) SKIP_TEST("on CPUs only so far");
  for (const int ranks : {1, 2, 3}) {
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      for (const char* name : {"qwen3moe-fp8", "gptoss-mxfp4"}) {
        Mixture mixture(rank, name, true);
        // Experts of 64 in parts of 32 leave nothing for a third rank.
        CHECK((mixture.keeps_some() || rank.member.rank() == 2));
        CHECK(mixture.compare() == "");
      }
    });
  }
}

}  // namespace
}  // namespace nvllm::model
