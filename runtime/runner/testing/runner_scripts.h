// What several tests let runners do: whole runs, sequences that come and go, copies that take their
// time, and steps without a wait that they need.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvcache/chunked/load_ring.h"
#include "runtime/runner/testing/runner_fixture.h"

namespace nvllm::runtime {

inline constexpr int kDecodeSteps = 47;  // with the prompt's own token all of a continuation

// Keys and values in chunks, with room for all of a model's prompts.
RunnerTestOptions chunked(std::int64_t ring_slots, std::int64_t block_size);

// The last prompt of a model and all of its continuation, alone, in chunks of 16 tokens, of which
// the first `resident` stay on the device. Checks the tokens, and after each part that as many
// bytes have moved as blocks were read and filled.
void check_traffic(testing::DeviceRank& rank, const GoldenModel& golden, std::int64_t resident);

// All prompts of a model together, in chunks: what is wrong with their continuations, on rank 0.
std::string continue_all(testing::DeviceRank& rank, const GoldenModel& golden,
                         const RunnerTestOptions& options, std::int64_t chunk,
                         kvcache::KvTraffic* traffic = nullptr);

// Three slots whose sequences come and go in turns; slot 0 is free at the end, 1 and 2 have the
// second prompt.
void come_and_go(RunnerUnderTest& runner, const std::vector<GoldenModel::Prompt>& prompts);
// The same, then the first prompt in slot 0, of which `keep` blocks stay on the device, and 20 more
// steps: checks all tokens. There are 3 slots, 30 blocks, and 2 steps ahead.
void check_come_and_go(testing::DeviceRank& rank, const GoldenModel& golden,
                       RunnerTestOptions options, std::int64_t keep = 0);

// Copies and calls of the host begin after so long.
kvcache::OffloadHooks slow(std::function<std::chrono::microseconds(kvcache::Transfer)> time);
kvcache::OffloadHooks slow_at_random(unsigned seed);

// What is wrong with the tokens of steps that need waits[which], without the waits whose bits are
// set. run: how many there were before; runs may be of several kinds by turns.
using WrongWithout = std::function<std::string(testing::DeviceRank& rank, const GoldenModel& golden,
                                               std::size_t which, std::uint32_t left_out, int run)>;

// The waits of a table whose rows have one each.
template <typename Row>
std::vector<kvcache::OffloadWait> waits_of(const std::vector<Row>& rows) {
  std::vector<kvcache::OffloadWait> waits;
  for (const Row& row : rows) waits.push_back(row.wait);
  return waits;
}

// Checks that without each of the waits in turn some of `runs` runs go wrong.
void check_waits_are_missed(const char* model, const std::vector<kvcache::OffloadWait>& waits,
                            const WrongWithout& wrong, int runs);
// The whole of a test case: ThreadSanitizer says nothing of any steps, and finds a race without
// each of the waits.
void find_races(const std::string& case_name, const char* model,
                const std::vector<kvcache::OffloadWait>& waits, const WrongWithout& wrong);

}  // namespace nvllm::runtime
