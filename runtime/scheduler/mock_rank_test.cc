// The mock rank that the scheduler's simulation relies on detects everything that would make a real
// rank produce wrong results.
#include "runtime/scheduler/testing/mock_rank.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "testing/error_of.h"

namespace nvllm::runtime {
namespace {

constexpr SchedulerLimits kLimits = {.max_model_len = 16,
                                     .max_num_seqs = 2,
                                     .max_num_batched_tokens = 8,
                                     .max_logit_rows = 2,
                                     .blocks = 4,
                                     .block_size = 2,
                                     .host_blocks = 2};

SlotStart start(std::uint32_t slot, std::vector<std::int32_t> tokens, std::int32_t computed = 0) {
  SlotStart start;
  start.slot = slot;
  start.rules.prompt_length = static_cast<std::int32_t>(tokens.size());
  start.tokens = std::move(tokens);
  start.computed = computed;
  return start;
}

// Three tokens in slot 0, in blocks 0 and 1; two of them are computed.
StepMessage first_step() {
  StepMessage message;
  message.number = 1;
  message.started = {start(0, {5, 6, 7})};
  message.blocks = {{0, 0}, {0, 1}};
  message.rows = {{0, 2}};
  return message;
}

StepMessage next_step(std::vector<StepRows> rows) {
  StepMessage message;
  message.number = 2;
  message.rows = std::move(rows);
  return message;
}

// The error that the second of two steps yields; empty: none.
std::string wrong(const StepMessage& second) {
  MockRank rank(kLimits, {});
  CHECK(rank.step(first_step()).tokens.empty());
  return testing::error_of([&] { rank.step(second); });
}

TEST_CASE("what is right is taken") {
  CHECK(wrong(next_step({{0, 1}})) == "");

  StepMessage swapped = next_step({{0, 1}});
  swapped.ended = {0};
  swapped.swap_out = {{0, 1}};
  swapped.swap_in = {{1, 3}};
  swapped.started = {start(0, {5, 6, 7}, 2)};
  swapped.blocks = {{0, 3}, {0, 2}};
  CHECK(wrong(swapped) == "");
}

TEST_CASE("a block that two sequences write") {
  StepMessage message = next_step({{1, 2}, {0, 1}});
  message.started = {start(1, {1, 2, 3})};
  message.blocks = {{1, 0}, {1, 2}};
  CHECK(wrong(message) == "slot 0: block 0 does not hold its sequence's position 0");
}

TEST_CASE("a block of other tokens that is taken for a cached one") {
  StepMessage message = next_step({{1, 1}});
  message.started = {start(1, {5, 5, 7}, 2)};
  message.blocks = {{1, 0}, {1, 2}};
  CHECK(wrong(message) == "slot 1: block 0 does not hold its sequence's position 1");
}

TEST_CASE("a block of the same tokens after other ones") {
  MockRank rank(kLimits, {});
  rank.step(first_step());
  rank.step(next_step({{0, 1}}));
  StepMessage message;
  message.number = 3;
  message.started = {start(1, {1, 2, 5, 6, 7}, 4)};
  message.blocks = {{1, 2}, {1, 0}, {1, 3}};
  message.rows = {{1, 1}};
  CHECK_THROWS_AS(rank.step(message), Error);
}

TEST_CASE("tokens that did not come back from the host") {
  StepMessage message = next_step({{0, 1}});
  message.ended = {0};
  message.swap_out = {{0, 1}};
  message.started = {start(0, {5, 6, 7}, 2)};
  message.blocks = {{0, 3}, {0, 2}};
  CHECK(wrong(message) == "slot 0: block 3 does not hold its sequence's position 0");
}

TEST_CASE("rows without a block, without a token, without a sequence, beyond the limits") {
  StepMessage message = next_step({{1, 3}});
  message.started = {start(1, {1, 2, 3})};
  message.blocks = {{1, 2}};
  CHECK(wrong(message) == "slot 1 has no block for position 2");
  CHECK(wrong(next_step({{0, 2}})) == "slot 0 has no token for its row at 3");
  CHECK(wrong(next_step({{1, 1}})) == "slot 1 holds no sequence");
  CHECK(wrong(next_step({{0, 9}})) == "step 2 has 9 rows");
  CHECK(wrong(next_step({})) == "step 2 has no rows");
}

// Slot 0 has three tokens and saves a snapshot after two of them; then slot 1 starts with `tokens`
// computed and states from `copies`. Returns the error; empty: none.
std::string wrong_with_states(std::vector<std::int32_t> tokens, const StateCopies& copies) {
  SchedulerLimits limits = kLimits;
  limits.states = {.kept = true, .snapshots = 2, .snapshot_tokens = 2, .host = 1};
  MockRank rank(limits, {});
  StepMessage message = first_step();
  message.states.save = {{0, 1}};
  rank.step(message);
  message = next_step({{1, 1}});
  message.started = {start(1, std::move(tokens), 2)};
  message.blocks = {{1, 0}, {1, 2}};
  message.states = copies;
  return testing::error_of([&] { rank.step(message); });
}

TEST_CASE("states of linear attention that are not those of all tokens before a row") {
  CHECK(wrong_with_states({5, 6, 7}, {.restore = {{1, 1}}}) == "");
  CHECK(wrong_with_states({5, 6, 7}, {.swap_out = {{0, 0}}, .swap_in = {{0, 1}}}) == "");
  const std::string others = "slot 1: its states are not those behind 2 tokens";
  CHECK(wrong_with_states({5, 6, 7}, {}) == others);
  CHECK(wrong_with_states({5, 6, 7}, {.restore = {{0, 1}}}) == others);
  CHECK(wrong_with_states({5, 6, 7}, {.swap_in = {{0, 1}}}) == others);
  CHECK(wrong_with_states({5, 6, 7}, {.restore = {{2, 1}}}) == "step 2 copies states from 2 to 1");
}

TEST_CASE("a slot that starts twice") {
  StepMessage message = next_step({{0, 1}});
  message.started = {start(0, {1, 2})};
  CHECK(wrong(message) == "slot 0 is taken");
}

}  // namespace
}  // namespace nvllm::runtime
