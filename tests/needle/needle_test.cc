// Needles of every kind are found by nvllm-launch, on the CPU, at every depth.
//
// NVLLM_NEEDLE_TOKENS: the longest prompt; default 32768, up to 262144 for a long run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "model/testing/test_folder.h"
#include "testing/sanitizers.h"
#include "tests/needle/asker.h"
#include "tests/needle/haystack.h"
#include "tests/needle/needle_model.h"

namespace nvllm::needle {
namespace {

// Sanitizers make everything ten times slower, and the code is the same at all depths.
const std::vector<double> kDepths =
    testing::kSanitized ? std::vector<double>{0, 0.4, 1}
                        : std::vector<double>{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};

const std::vector<std::int64_t> kLengths = {1024, 8192, 32768, 262144};
// Prompt lengths for sparse policies: prompts that are recomputed each time take long.
const std::vector<std::int64_t> kPolicyLengths = {1024, 2048, 4096, 32768, 262144};

// An engine configuration: the kv_mode that all of its answers report, and its options.
struct Mode {
  std::string kv_mode;
  std::vector<std::string> options;
  std::int64_t longest;  // longest prompt by default
};

const std::string chunked = "--kv-offload=chunked", all_cross = "--kv-resident-blocks=0";

std::vector<Mode> storage_modes() {
  return {
      {"paged", {"--kv-cache-memory-bytes=1G"}, 8192},
      {"paged", {"--scheduling=prefill-first", "--no-async-scheduling", "--block-size=64"}, 8192},
      {"paged", {"--no-enable-prefix-caching", "--max-num-seqs=2"}, 1024},
      {"contiguous", {"--max-num-batched-tokens=1000"}, 1024},
      {"chunked", {chunked, all_cross, "--transfer-block=1024", "--ring-slots=2"}, 8192},
      {"chunked", {chunked, all_cross, "--transfer-block=48", "--ring-slots=3"}, 1024},
      {"hybrid",
       {chunked, "--kv-resident-blocks=5", "--transfer-block=128", "--max-num-seqs=1"},
       1024},
      {"resident", {chunked, "--transfer-block=1024"}, 8192},
      {"layerwise", {"--kv-offload=layerwise", "--transfer-block=1024"}, 8192},
      {"layerwise",
       {"--kv-offload=layerwise", "--transfer-block=48", "--kv-buffers=2",
        "--max-num-batched-tokens=512"},
       1024},
  };
}

// Sparse modes: prompts from 1024 tokens on, decode from 2048 on. Prompts are prefilled from their
// start or after a cached prefix, one at a time or several together, in chunks that end anywhere.
std::vector<Mode> policies() {
  const std::string whole = "--no-enable-prefix-caching", one = "--max-num-seqs=1";
  const std::string small_steps = "--max-num-batched-tokens=1000";
  const std::string minference = "--prefill-attention=minference",
                    xattention = "--prefill-attention=xattention",
                    quest = "--decode-attention=quest";
  return {
      {"paged", {minference, whole, one}, 2048},
      {"paged", {xattention, whole, one}, 4096},
      {"paged", {xattention, whole, small_steps}, 4096},
      {"paged", {minference, quest, small_steps}, 4096},
      {"paged", {quest}, 32768},
      {"contiguous", {xattention, quest}, 1024},
      {"chunked", {quest, chunked, all_cross, "--transfer-block=1024", "--ring-slots=2"}, 4096},
      {"chunked", {minference, chunked, all_cross, "--transfer-block=512", whole, one}, 1024},
      {"chunked", {xattention, chunked, all_cross, "--transfer-block=512"}, 2048},
      {"layerwise", {quest, "--kv-offload=layerwise", "--transfer-block=1024"}, 4096},
      {"layerwise",
       {xattention, "--kv-offload=layerwise", "--transfer-block=512", whole, small_steps},
       4096},
  };
}

std::int64_t longest_of(const Mode& mode) {
  const char* given = std::getenv("NVLLM_NEEDLE_TOKENS");
  if (given != nullptr) return std::atoll(given);
  return testing::kSanitized ? kLengths.front() : mode.longest;
}

class Model {
 public:
  explicit Model(NeedleShape shape = {}) : model_(shape) { model_.write(folder_.path()); }

  const NeedleModel& model() const { return model_; }

  // The share of questions answered correctly in this mode.
  double found(const std::vector<Question>& questions, const Mode& mode) const {
    std::vector<std::string> options = {"--device=cpu"};
    if (std::ranges::find(mode.options, "--dtype=bfloat16") == mode.options.end()) {
      options.emplace_back("--dtype=float32");
    }
    options.insert(options.end(), mode.options.begin(), mode.options.end());
    if (mode.kv_mode == "contiguous") {
      options.push_back("--max-seq-len=" + std::to_string(questions.front().prompt.size() + 64));
    }
    const std::vector<Found> answers = ask(folder_.path(), questions, options);
    double right = 0;
    for (const Found& answer : answers) {
      CHECK(answer.kv_mode == mode.kv_mode);
      right += answer.right ? 1 : 0;
    }
    return right / static_cast<double>(answers.size());
  }

 private:
  const NeedleModel model_;
  model::TestFolder folder_;
};

void find_needles(const Model& model, const std::vector<Mode>& modes,
                  const std::vector<std::int64_t>& lengths) {
  for (const Mode& mode : modes) {
    const std::int64_t longest = longest_of(mode);
    for (const std::int64_t tokens : lengths) {
      if (tokens > longest) break;
      CAPTURE(mode.options.front());
      CAPTURE(tokens);
      const std::int64_t room = model.model().max_positions() - 128;
      const HaystackPlan plan{.tokens = std::min(tokens, room), .depths = kDepths};
      CHECK(model.found(ask_for_needles(model.model(), plan), mode) == 1);
    }
  }
}

}  // namespace

TEST_CASE("needles are found at 11 depths in prompts of every length, in every mode") {
  find_needles(Model(), storage_modes(), kLengths);
}

TEST_CASE("needles are found at 11 depths by every policy, in the modes that serve it") {
  find_needles(Model(), policies(), kPolicyLengths);
}

TEST_CASE("what is not there is not found") {
  const Model model;
  CHECK(model.found({ask_for_nothing(model.model(), {})}, storage_modes().front()) == 1);
}

TEST_CASE("a value of many tokens comes whole, and ends") {
  const Model model;
  const HaystackPlan plan{.depths = kDepths, .value_tokens = 9};
  CHECK(model.found(ask_for_needles(model.model(), plan), storage_modes().front()) == 1);
}

TEST_CASE("a chain of variables is followed to its end") {
  const Model model;
  const HaystackPlan plan{.depths = {0, 0.3, 0.6, 0.95}, .value_tokens = 4, .hops = 4};
  CHECK(model.found(ask_for_needles(model.model(), plan), storage_modes().front()) == 1);
}

TEST_CASE("one line is found among nothing but lines") {
  const Model model({.head_dim = 128});
  const HaystackPlan plan{.tokens = 3001, .depths = kDepths, .density = 1};
  CHECK(model.found(ask_for_needles(model.model(), plan), storage_modes().front()) == 1);
}

// Three times as many pages with letters as Quest's budget; under sanitizers a prompt of which it
// omits half.
TEST_CASE("Quest tells the needle's page from those of hundreds of other lines") {
  const Model model({.head_dim = 128});
  const std::int64_t tokens = testing::kSanitized ? 4096 : 16384;
  const HaystackPlan plan{.tokens = tokens, .depths = kDepths, .density = 0.12};
  CHECK(model.found(ask_for_needles(model.model(), plan),
                    {"paged", {"--decode-attention=quest"}, 0}) == 1);
}

TEST_CASE("all ranks' heads are needed, and there: 1 to 3 ranks, in 16 bits, too") {
  const Model model({.heads = 6, .kv_heads = 2});
  for (const char* ranks : {"--tp=1", "--tp=2", "--tp=3"}) {
    CAPTURE(ranks);
    const Mode mode{"paged", {ranks, "--dtype=bfloat16"}, 0};
    CHECK(model.found(ask_for_needles(model.model(), {.tokens = 700, .depths = {0, 0.5, 1}}),
                      mode) == 1);
  }
}

}  // namespace nvllm::needle
