// Whole models with Shard::tp_invariant: the logits of 2, 3 and 4 ranks have the bits of one
// rank's, of prompts together and of the tokens after them, for all families. Ranks may share a
// GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "model/testing/test_model.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::model {
namespace {

using testing::DeviceRank;
using Logits = TestModel::Logits;
using Rows = std::vector<std::vector<float>>;

constexpr const char* kModels[] = {
    "llama-dynamic", "llama-llama3", "llama-tied", "mistral-hd128", "qwen2-bias", "qwen2-linear",
    "qwen3-gqa-tied", "qwen3-uneven", "qwen3-yarn", "qwen2-window", "gemma3-text",
    // Mixtures, with a shared expert, too, and with biases and sinks.
    "mixtral", "qwen3moe-dense-layer", "gptoss-bf16", "qwen35-moe", "qwen3next",
    // Linear attention; heads that differ by layer, inputs of layers, experts beside an MLP.
    "qwen35-dense", "gemma4-dense", "gemma4-ple", "gemma4-moe"};

std::vector<std::vector<std::int32_t>> prompts_of(const std::string& folder) {
  std::ifstream file(folder + "/expected.json");
  std::vector<std::vector<std::int32_t>> prompts;
  const nlohmann::json expected = read_json(file);
  for (const auto& prompt : expected["prompts"]) prompts.push_back(prompt["ids"]);
  return prompts;
}

// All logits of three prompts together, and of four tokens after each.
Rows logits_of(DeviceRank& rank, const std::string& name, DType dtype, bool tp_invariant) {
  const std::string folder = "tests/data/golden-models/" + name;
  const Checkpoint checkpoint = open_checkpoint(folder);
  TestModel model(
      rank, parse_config(checkpoint.config_json(), "", folder),
      {.dtype = dtype, .sequences = 3, .tokens = 224, .rows = 224, .tp_invariant = tp_invariant});
  model.load(checkpoint);
  const auto prompts = prompts_of(folder);
  TestModel::Parts parts;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    parts.push_back({static_cast<std::int64_t>(i), 0, prompts[i]});
  }
  Rows all = model.forward(parts, Logits::all);
  for (std::int32_t token = 1; token <= 4; ++token) {
    for (auto& part : parts) {
      part.begin += static_cast<std::int64_t>(part.tokens.size());
      part.tokens = {token};
    }
    for (auto& row : model.forward(parts, Logits::last)) all.push_back(row);
  }
  return all;
}

// One rank's, in each of the ranks.
Rows logits_alone(const DeviceRank& rank, const std::string& name, DType dtype, bool tp_invariant) {
  DeviceRank alone{.member = rank.member,
                   .backend = create_backend(testing::device_under_test()),
                   .stream = nullptr,
                   .communicator = nullptr,
                   .link = nullptr};
  alone.stream = alone.backend->create_stream();
  return logits_of(alone, name, dtype, tp_invariant);
}

// Rows of other bits.
int differing_rows(const Rows& a, const Rows& b) {
  int count = a.size() == b.size() ? 0 : 1'000'000;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    count += a[i].size() != b[i].size() ||
             std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0;
  }
  return count;
}

// Ranks that share a GPU take their time: so models are in groups, and more than two of such ranks
// have one type alone.
void have_the_bits_of_one(int ranks) {
  std::vector<DType> types = {DType::f32, DType::bf16, DType::f16};
  if (ranks > 2 && !testing::why_no_ranks(ranks).empty()) types = {DType::bf16};
  constexpr std::size_t kAtOnce = 5;
  for (std::size_t first = 0; first < std::size(kModels); first += kAtOnce) {
    const std::size_t end = std::min(first + kAtOnce, std::size(kModels));
    testing::run_on_devices(ranks, [&](DeviceRank& rank) {
      for (std::size_t n = first; n < end; ++n) {
        for (const DType dtype : types) {
          const std::string name = kModels[n];
          CAPTURE(name);
          CAPTURE(name_of(dtype));
          const Rows together = logits_of(rank, name, dtype, /*tp_invariant=*/true);
          CHECK(differing_rows(together, logits_alone(rank, name, dtype, true)) == 0);
        }
      }
    });
  }
}

TEST_CASE("2 ranks give the bits of one rank's logits") {
  if (testing::kSanitized) SKIP_TEST("3 ranks access the same memory");
  RANKS_OR_SKIP(1);
  have_the_bits_of_one(2);
}
TEST_CASE("3 ranks give the bits of one rank's logits") {
  RANKS_OR_SKIP(1);
  have_the_bits_of_one(3);
}
TEST_CASE("4 ranks give the bits of one rank's logits") {
  if (testing::kSanitized) SKIP_TEST("3 ranks access the same memory");
  RANKS_OR_SKIP(1);
  have_the_bits_of_one(4);
}

TEST_CASE("without tp_invariant two ranks give other bits than one") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(2, [](DeviceRank& rank) {
    for (const std::string name : {"qwen3-gqa-tied", "mixtral", "qwen35-dense", "gemma4-ple"}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(name);
        const Rows together = logits_of(rank, name, dtype, /*tp_invariant=*/false);
        CHECK(differing_rows(together, logits_alone(rank, name, dtype, false)) > 0);
      }
    }
  });
}

}  // namespace
}  // namespace nvllm::model
