#include "model/testing/golden_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_text.h"
#include "base/text.h"

namespace nvllm::model {
namespace {

constexpr std::int64_t kTokens = 224;  // of the longest prompt and its continuation, at least
constexpr std::int64_t kRows = 224;    // of the three prompts together, at least

GoldenLimits limits_of(DType dtype, bool keep_quantized) {
  // Offsets of weights that stay in INT4 are rounded to 11 bits: an eighth of what bfloat16 does to
  // weights. What has none (FP8, symmetric INT4) is exact.
  if (dtype == DType::f32 && keep_quantized) return {1e-2f, 2e-3f, 4e-3f, 0};
  if (dtype == DType::f32) return {1e-3f, 1e-3f, 2e-4f, 0};
  return {0.8f, 0.1f, 1e9f, 0.4f};  // hidden states are compared in float32 alone
}

}  // namespace

GoldenModel::GoldenModel(const std::string& name, bool unstretched)
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

GoldenCheck::GoldenCheck(testing::DeviceRank& rank, const std::string& name, DType dtype,
                         const How& how)
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

ModelConfig GoldenCheck::config_of(const How& how) const {
  ModelConfig config =
      parse_config(checkpoint_.config_json(), how.unstretched ? R"({"rope_scaling": null})" : "",
                   expected_.folder);
  config.moe.expert_parallel = how.expert_parallel;
  return config;
}

std::string GoldenCheck::compare(const std::string& what, const std::vector<float>& got,
                                 const std::vector<float>& right, float limit,
                                 float limit_rms) const {
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

TestModel::Parts GoldenCheck::prompts() const {
  TestModel::Parts parts;
  for (std::size_t i = 0; i < expected_.prompts.size(); ++i) {
    parts.push_back({static_cast<std::int64_t>(i), 0, expected_.prompts[i].ids});
  }
  return parts;
}

std::string GoldenCheck::first_prompt() {
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
  for (const auto& row : model_.forward({prompts()[0]}, TestModel::Logits::all, look)) {
    logits.insert(logits.end(), row.begin(), row.end());
  }
  if (!wrong.empty() || !model_.decoder().has_head()) return wrong;
  return compare_logits("logits", logits, golden("logits"));
}

std::string GoldenCheck::continuations() {
  TestModel::Parts parts = prompts();
  for (std::size_t step = 0; step < expected_.prompts[0].continuation.size(); ++step) {
    const auto logits = model_.forward(parts, TestModel::Logits::last);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const GoldenPrompt& prompt = expected_.prompts[i];
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

std::string GoldenCheck::in_pieces(std::size_t size) {
  const GoldenPrompt& prompt = expected_.prompts.back();
  std::vector<std::vector<float>> logits;
  std::size_t at = 0;
  for (std::size_t piece = 1; at < prompt.ids.size(); piece = piece * 3 + 2) {
    const std::size_t end = std::min(at + (size > 0 ? size : piece), prompt.ids.size());
    // Contiguous memory has its sequences in order.
    logits = model_.forward(
        {{0, static_cast<std::int64_t>(at), {prompt.ids.begin() + at, prompt.ids.begin() + end}}},
        TestModel::Logits::last);
    at = end;
  }
  if (!model_.decoder().has_head()) return {};
  return compare_logits("in pieces", logits[0], prompt.last_logits);
}

std::string GoldenCheck::in_a_graph() {
  TestModel::Parts parts = prompts();
  const TestModel::Parts before = parts;
  model_.forward(before, TestModel::Logits::none);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].begin = static_cast<std::int64_t>(parts[i].tokens.size());
    parts[i].tokens = {expected_.prompts[i].continuation[0]};
  }
  const auto eager = model_.forward(parts, TestModel::Logits::last);
  model_.forward(before, TestModel::Logits::none);  // states of linear attention as they were
  const auto replayed = model_.forward_in_graph(parts, TestModel::Logits::last);
  for (std::size_t i = 0; i < eager.size(); ++i) {
    if (std::memcmp(eager[i].data(), replayed[i].data(), eager[i].size() * sizeof(float)) != 0) {
      return str(name_, ": other logits in a graph, sequence ", i);
    }
  }
  return {};
}

}  // namespace nvllm::model
