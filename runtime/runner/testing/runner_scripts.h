// Runner scripts shared by several tests: whole runs, sequences that start and end, delayed copies,
// and steps without a wait that they need.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvcache/chunked/load_ring.h"
#include "runtime/runner/testing/runner_fixture.h"

namespace nvllm::runtime {

inline constexpr int kDecodeSteps = 47;  // with the prefill's own token a complete continuation

// Chunked mode, with enough blocks for all of a model's prompts.
RunnerTestOptions chunked(std::int64_t ring_slots, std::int64_t block_size);

// Runs the last prompt of a model and its continuation alone, in chunks of 16 tokens; the first
// `resident` blocks stay on the device. Checks the tokens, and after each part the bytes copied
// against the blocks read and filled.
void check_traffic(testing::DeviceRank& rank, const GoldenModel& golden, std::int64_t resident);

// Runs all prompts of a model together, in chunks; describes wrong continuations, on rank 0.
std::string continue_all(testing::DeviceRank& rank, const GoldenModel& golden,
                         const RunnerTestOptions& options, std::int64_t chunk,
                         kvcache::KvTraffic* traffic = nullptr);

// Starts and ends sequences in three slots; in the end slot 0 is free, and 1 and 2 have the second
// prompt.
void come_and_go(RunnerUnderTest& runner, const std::vector<GoldenModel::Prompt>& prompts);
// The same, then the first prompt in slot 0, of which `keep` blocks stay on the device, and 20 more
// steps: checks all tokens. There are 3 slots, 30 blocks, and 2 steps ahead.
void check_come_and_go(testing::DeviceRank& rank, const GoldenModel& golden,
                       RunnerTestOptions options, std::int64_t keep = 0);

// Delays copies and host calls by this time.
kvcache::OffloadHooks slow(std::function<std::chrono::microseconds(kvcache::Transfer)> time);
kvcache::OffloadHooks slow_at_random(unsigned seed);

// The factor of delays in a run: copies take longer from run to run, until even the threads of a
// busy machine are faster.
int slowness(int run);

// Describes wrong tokens of steps that need waits[which], without the waits in the bit mask. run:
// index of the run; kinds of runs may alternate.
using WrongWithout = std::function<std::string(testing::DeviceRank& rank, const GoldenModel& golden,
                                               std::size_t which, std::uint32_t left_out, int run)>;

// The waits of a table that has one per row.
template <typename Row>
std::vector<kvcache::OffloadWait> waits_of(const std::vector<Row>& rows) {
  std::vector<kvcache::OffloadWait> waits;
  for (const Row& row : rows) waits.push_back(row.wait);
  return waits;
}

// Checks for each wait that some of `runs` runs go wrong without it.
void check_waits_are_missed(const char* model, const std::vector<kvcache::OffloadWait>& waits,
                            const WrongWithout& wrong, int runs);
// A complete test case: ThreadSanitizer reports nothing for the steps as they are, and a race
// without each of the waits.
void find_races(const std::string& case_name, const char* model,
                const std::vector<kvcache::OffloadWait>& waits, const WrongWithout& wrong);

}  // namespace nvllm::runtime
