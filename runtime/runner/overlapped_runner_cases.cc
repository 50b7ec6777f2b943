// Steps with overlapped all-reduces: the same tokens as undivided steps, whichever sequences they
// contain and wherever they are split; on CPUs the same bits.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runner/testing/own_rows_communicator.h"
#include "runtime/runner/testing/runner_fixture.h"
#include "runtime/runner/testing/runner_scripts.h"

namespace nvllm::runtime {
namespace {

using testing::DeviceRank;

RunnerTestOptions overlapped(DType dtype = DType::f32) {
  return {.dtype = dtype, .overlap_rows = 2};
}

// On CPUs, emulates the overlapped sums of GPUs with peer memory; on GPUs they are real.
OwnRowsCommunicator* overlap_on_cpu(DeviceRank& rank) {
  if (testing::device_under_test() != DeviceKind::cpu) return nullptr;
  auto own_rows =
      std::make_unique<OwnRowsCommunicator>(std::move(rank.communicator), *rank.backend);
  OwnRowsCommunicator* const communicator = own_rows.get();
  rank.communicator = std::move(own_rows);
  return communicator;
}

void continues_all(int ranks, DType dtype) {
  RANKS_OR_SKIP(ranks);
  testing::run_on_devices(ranks, [&](DeviceRank& rank) {
    const OwnRowsCommunicator* const own_rows = overlap_on_cpu(rank);
    for (const char* name : {kUnevenModel, "llama-tied", "qwen2-bias"}) {
      const GoldenModel golden(name);
      for (const std::int64_t chunk :
           {std::int64_t{2}, std::int64_t{3}, std::int64_t{40}, kWhole}) {
        CAPTURE(name);
        CAPTURE(chunk);
        CHECK(continue_all(rank, golden, overlapped(dtype), chunk) == "");
      }
    }
    if (own_rows != nullptr) CHECK(own_rows->sums() > 0);
  });
}

TEST_CASE("overlapped: float32 on 2 ranks") {
  continues_all(2, DType::f32);
}
TEST_CASE("overlapped: float32 on 3 ranks") {
  continues_all(3, DType::f32);
}
TEST_CASE("overlapped: float32 on 4 ranks") {
  continues_all(4, DType::f32);
}
TEST_CASE("overlapped: bfloat16 on 2 ranks") {
  continues_all(2, DType::bf16);
}

// Log-probabilities of three prompts' tokens, which are prefilled in chunks, and of some tokens
// after them.
std::vector<float> logprobs(DeviceRank& rank, const GoldenModel& golden,
                            const RunnerTestOptions& options, std::int64_t chunk) {
  RunnerUnderTest runner(rank, golden, options);
  layers::SamplingRules rules = greedy();
  rules.logprobs = 1;
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    runner.start(slot, golden.prompts[slot].ids, {}, rules, 1);
  }
  runner.prefill(chunk);
  runner.decode(3);
  runner.finish();
  std::vector<float> all;
  for (const StepResult& result : runner.results()) {
    for (const StepResult::PromptLogprobs& prompt : result.prompts) {
      for (const TokenLogprobs& token : prompt.tokens) all.push_back(token.chosen.logprob);
    }
    for (const StepResult::Token& token : result.tokens) {
      all.push_back(token.logprobs.chosen.logprob);
    }
  }
  return all;
}

TEST_CASE("overlapped: on CPUs the same bits as at once") {
  RANKS_OR_SKIP(2);
  if (testing::device_under_test() != DeviceKind::cpu) {
    SKIP_TEST("GEMMs of GPUs depend on how many rows there are");
  }
  testing::run_on_devices(2, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    const std::vector<float> expected = logprobs(rank, golden, {}, 40);
    const OwnRowsCommunicator* const own_rows = overlap_on_cpu(rank);
    const std::vector<float> got = logprobs(rank, golden, overlapped(), 40);
    CHECK(own_rows->sums() > 0);
    if (rank.member.rank() > 0) return;
    REQUIRE(expected.size() > 100);
    REQUIRE(got.size() == expected.size());
    CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
  });
}

// The tokens of three sequences, one of which starts while the others decode.
std::vector<std::vector<std::int32_t>> tokens_beside_decoding(DeviceRank& rank,
                                                              const GoldenModel& golden,
                                                              const RunnerTestOptions& options) {
  RunnerUnderTest runner(rank, golden, options);
  for (const std::uint32_t slot : {0, 1}) runner.start(slot, golden.prompts[slot].ids);
  runner.prefill(kWhole);
  const std::vector<std::int32_t>& prompt = golden.prompts[2].ids;
  runner.start(2, prompt);
  runner.rows(0, 1).rows(1, 1).rows(2, std::ssize(prompt)).step();
  runner.decode(3);
  runner.finish();
  return {runner.tokens(0), runner.tokens(1), runner.tokens(2)};
}

TEST_CASE("overlapped: a prompt beside sequences that decode") {
  RANKS_OR_SKIP(2);
  testing::run_on_devices(2, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    const auto expected = tokens_beside_decoding(rank, golden, {});
    const OwnRowsCommunicator* const own_rows = overlap_on_cpu(rank);
    CHECK(tokens_beside_decoding(rank, golden, overlapped()) == expected);
    if (own_rows != nullptr) CHECK(own_rows->sums() > 0);
    if (rank.member.rank() == 0) CHECK(expected[2].size() == 4);
  });
}

}  // namespace
}  // namespace nvllm::runtime
