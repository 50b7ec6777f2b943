// Mixtures of experts, linear attention and Gemma 4 in bfloat16 against transformers' numbers in
// float32. Roundings let some rows choose other experts, in transformers, too, and these rows'
// logits are far off: so what is compared is the root mean square, the median of the positions and
// the share of the tokens.
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
#include "model/testing/test_model.h"
#include "testing/device_ranks.h"
#include "testing/golden.h"

namespace nvllm::model {
namespace {

using testing::DeviceRank;
using Rows = std::vector<std::vector<float>>;

constexpr std::int64_t kTokens = 224;  // of the longest prompt and its continuation, at least

// What is asked of a model.
struct Limits {
  float median = 0.7f;  // the largest difference at the median position
  int of_ten = 9;       // tokens of ten clear ones that must match
  // Compares all positions of all prompts and their continuations, together, with the model's own
  // logits in float32, which golden_cases.cc compares with transformers'. A row that rounds its way
  // to other experts is off by much (with linear attention all later rows, too), and one prompt has
  // too few rows for that not to matter.
  bool all_positions = false;
};

struct Prompt {
  std::vector<std::int32_t> ids, continuation;
  std::vector<float> margins;
  float rms = 0;  // of transformers' own bfloat16
};

class Mixture {
 public:
  Mixture(DeviceRank& rank, const std::string& name, bool keep_quantized, Limits limits = {})
      : folder_("tests/data/golden-models/" + name),
        limits_(limits),
        checkpoint_(open_checkpoint(folder_)),
        model_(rank, parse_config(checkpoint_.config_json(), "", folder_),
               {.dtype = DType::bf16,
                .tokens = kTokens,
                .rows = kTokens,
                .keep_quantized = keep_quantized ? &checkpoint_ : nullptr}) {
    model_.load(checkpoint_);
    if (limits.all_positions) {
      exact_.emplace(rank, model_.decoder().config(),
                     TestModelShape{.dtype = DType::f32, .tokens = kTokens, .rows = kTokens});
      exact_->load(checkpoint_);
    }
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
    Differences all;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const Prompt& prompt = prompts_[i];
      std::vector<std::int32_t> tokens = prompt.ids;
      tokens.insert(tokens.end(), prompt.continuation.begin(), prompt.continuation.end());
      const Rows rows = model_.forward({{0, 0, tokens}}, TestModel::Logits::all);
      if (exact_) {
        all.add(rows, exact_->forward({{0, 0, tokens}}, TestModel::Logits::all), prompt.rms);
      } else if (i == 0) {
        all.add(rows, golden_rows(rows.front().size()), prompt.rms);
      }
      const std::string wrong = compare_tokens(rows, prompt);
      if (!wrong.empty()) return str("prompt ", i, ": ", wrong);
    }
    return all.wrong(limits_.median);
  }

 private:
  // Differences between logits, at all positions that were added.
  struct Differences {
    std::vector<float> largest;            // of each position
    double squares = 0, transformers = 0;  // the latter: transformers' own, likewise
    std::size_t count = 0;

    // Those of the first rows, as many as `right` has. rms: transformers'.
    void add(const Rows& rows, const Rows& right, float rms) {
      for (std::size_t row = 0; row < right.size(); ++row) {
        float worst = 0;
        for (std::size_t i = 0; i < right[row].size(); ++i) {
          const float difference = std::fabs(rows[row][i] - right[row][i]);
          worst = std::max(worst, difference);  // a NaN shows in the sum
          squares += difference * difference;
          transformers += double{rms} * double{rms};
        }
        count += right[row].size();
        largest.push_back(worst);
      }
    }

    std::string wrong(float max_median) {
      const double rms = std::sqrt(squares / static_cast<double>(count));
      const double wanted = std::sqrt(transformers / static_cast<double>(count));
      if (!(rms <= 2 * wanted)) return str("rms ", rms, ", transformers' ", wanted);
      std::ranges::sort(largest);
      const float median = largest[largest.size() / 2];
      return median < max_median ? "" : str("at the median position off by ", median);
    }
  };

  // The expected logits of the first prompt, which are stored for all positions.
  Rows golden_rows(std::size_t columns) const {
    const auto golden =
        testing::read_golden(folder_ + "/expected.safetensors").at("prompt0.logits").values;
    Rows rows;
    for (auto at = golden.begin(); at != golden.end(); at += static_cast<std::ptrdiff_t>(columns)) {
      rows.emplace_back(at, at + static_cast<std::ptrdiff_t>(columns));
    }
    return rows;
  }

  // Where one token leads clearly, of_ten of 10 must match.
  std::string compare_tokens(const Rows& rows, const Prompt& prompt) const {
    int clear = 0, right = 0;
    for (std::size_t step = 0; step < prompt.continuation.size(); ++step) {
      if (prompt.margins[step] <= 0.4f) continue;
      const std::vector<float>& logits = rows[prompt.ids.size() - 1 + step];
      const auto best = std::ranges::max_element(logits) - logits.begin();
      ++clear;
      right += best == prompt.continuation[step];
    }
    return right * 10 >= clear * limits_.of_ten ? "" : str(right, " of ", clear, " tokens");
  }

  std::string folder_;
  Limits limits_;
  Checkpoint checkpoint_;
  TestModel model_;
  std::optional<TestModel> exact_;
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

TEST_CASE("linear attention in bfloat16 on 1 to 4 ranks") {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2, 3, 4}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      const Limits dense{.median = 0.5f, .of_ten = 10, .all_positions = true};
      CHECK(Mixture(rank, "qwen35-dense", false, dense).compare() == "");
      for (const char* name : {"qwen35-moe", "qwen35-moe-fp8", "qwen3next"}) {
        const std::string model = name;
        CAPTURE(model);
        CHECK(Mixture(rank, name, false, {.all_positions = true}).compare() == "");
      }
    });
  }
}

TEST_CASE("Gemma 4 in bfloat16 on 1 to 4 ranks") {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2, 3, 4}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      for (const std::string name : {"gemma4-dense", "gemma4-ple", "gemma4-moe"}) {
        CAPTURE(name);
        Limits limits{.all_positions = true};
        if (name != "gemma4-moe") limits.median = 0.5f, limits.of_ten = 10;
        CHECK(Mixture(rank, name, false, limits).compare() == "");
      }
    });
  }
}

TEST_CASE("bfloat16 with weights that stay in FP8 or MXFP4, on 1 to 3 ranks") {
  RANKS_OR_SKIP(1);
  for (const int ranks : {1, 2, 3}) {
    if (!testing::why_no_ranks(ranks).empty()) continue;
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      for (const std::string name : {"qwen3moe-fp8", "gptoss-mxfp4", "qwen35-moe-fp8"}) {
        Mixture mixture(rank, name, true, {.all_positions = true});
        // Experts of 64 in parts of 32 leave nothing for a third rank.
        CHECK((mixture.keeps_some() || rank.member.rank() == 2));
        CHECK(mixture.compare() == "");
      }
    });
  }
}

}  // namespace
}  // namespace nvllm::model
