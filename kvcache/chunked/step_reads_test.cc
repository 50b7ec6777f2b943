#include "kvcache/chunked/step_reads.h"

#include <doctest/doctest.h>

#include <vector>

namespace nvllm::kvcache {
namespace {

using Kind = StepReads::Kind;
using Read = StepReads::Read;
using HostRead = StepReads::HostRead;

constexpr std::int64_t kTokens = 4;  // of a block

StepReads::Rules rules() {
  return {.blocks = 16, .block_size = kTokens, .max_blocks = 16};
}

struct Sequence {
  std::vector<BlockId> blocks;
  std::int64_t first, rows;
};

void plan(StepReads& reads, const std::vector<Sequence>& sequences, const DeviceSlots& slots,
          double host_share = 0) {
  std::vector<StepSequence> step;
  for (const Sequence& each : sequences) {
    step.push_back({.blocks = each.blocks, .first = each.first, .rows = each.rows});
  }
  reads.plan({.sequences = step}, slots, host_share);
}

std::vector<BlockId> blocks_through_ring(const StepReads& reads) {
  std::vector<BlockId> blocks;
  for (const Read& read : reads.through_ring()) blocks.push_back(read.block);
  return blocks;
}

TEST_CASE("a block in a slot is read there, every other one once, whoever shares it") {
  DeviceSlots slots(4, 16);
  const DeviceSlot open = slots.open(7), other = slots.open(8);
  StepReads reads(rules());
  plan(reads, {{{1, 2, 7}, 9, 1}, {{1, 3, 8}, 8, 2}}, slots);
  CHECK(reads.through_ring() == std::vector<Read>{{1, {0, 1}}, {2, {0}}, {3, {1}}});
  CHECK(reads.parts()[0].residents == std::vector<std::int32_t>{open});
  CHECK(reads.parts()[0].resident_tokens == 2);
  CHECK(reads.parts()[1].residents == std::vector<std::int32_t>{other});
  CHECK(reads.parts()[1].begin == 1);
  CHECK(reads.residents() == 1);
}

TEST_CASE("reads of the same sequences are taken run_length, staged ones one by one") {
  DeviceSlots slots(4, 16);
  slots.open(7);
  StepReads::Rules with_prompts = rules();
  with_prompts.prompts = true;
  with_prompts.max_blocks = 8;
  StepReads reads(with_prompts);
  plan(reads, {{{1, 2, 7}, 8, 2}}, slots);  // staged
  CHECK(reads.through_ring().size() == 2);
  CHECK(reads.run_length(0, 2) == 1);
  plan(reads, {{{1, 2, 3, 4, 7}, 17, 1}, {{1, 2, 5, 6, 7}, 17, 1}}, slots);
  CHECK(blocks_through_ring(reads) == std::vector<BlockId>{1, 2, 3, 4, 5, 6});
  CHECK(reads.run_length(0, 6) == 2);
  CHECK(reads.run_length(0, 1) == 1);
  CHECK(reads.run_length(1, 6) == 1);
  CHECK(reads.run_length(2, 6) == 2);
  CHECK(reads.run_length(4, 6) == 2);
}

TEST_CASE("the next token reads what the one before has read, until a block is full") {
  DeviceSlots slots(4, 16);
  slots.open(7);
  StepReads reads(rules());
  plan(reads, {{{1, 7}, 6, 1}}, slots);
  CHECK_FALSE(reads.same_as_last());
  plan(reads, {{{1, 7}, 7, 1}}, slots);
  CHECK(reads.same_as_last());
  slots.release(7);
  slots.open(8);
  plan(reads, {{{1, 7, 8}, 8, 1}}, slots);
  CHECK_FALSE(reads.same_as_last());
}

TEST_CASE("a table is as wide as it may ever be where all blocks are in slots") {
  DeviceSlots slots(20, 32);
  StepReads::Rules wide = rules();
  wide.blocks = 32;
  wide.max_blocks = 14;
  StepReads reads(wide);
  std::vector<BlockId> blocks;
  for (BlockId block = 0; block < 9; ++block) {
    slots.open(block);
    blocks.push_back(block);
    plan(reads, {{blocks, (block + 1) * kTokens - 1, 1}}, slots);
    CHECK(reads.none());
    CHECK(reads.residents() == 14);
  }
  blocks.push_back(20);
  plan(reads, {{blocks, 10 * kTokens - 1, 1}}, slots);
  CHECK(reads.residents() == 16);
}

TEST_CASE("without heads nothing is read, in no step") {
  const DeviceSlots slots(4, 16);
  StepReads::Rules none = rules();
  none.heads = false;
  StepReads reads(none);
  for (int step = 0; step < 3; ++step) {
    plan(reads, {{{1, 2, 3}, 11, 1}, {{1, 2, 3}, 8, 4}}, slots, 0.5);
    CHECK(reads.through_ring().empty());
    CHECK(reads.by_host().empty());
  }
}

// A policy chooses for prompts.
StepReads::Rules rules_for_prompts() {
  StepReads::Rules chosen = rules();
  chosen.prompts = true;
  chosen.min_tokens = 8;
  chosen.max_blocks = 3;
  return chosen;
}

TEST_CASE("prompts that a policy chooses for come first, and a prefix of both stays in place") {
  DeviceSlots slots(4, 16);
  slots.open(6);
  slots.open(7);
  StepReads reads(rules_for_prompts());
  plan(reads, {{{5, 4}, 7, 1}, {{1, 2, 6}, 8, 3}, {{1, 3, 7}, 8, 2}}, slots);
  CHECK(reads.parts()[0].kind == Kind::everything);
  CHECK(reads.parts()[1].kind == Kind::prompt);
  CHECK(reads.through_ring() ==
        std::vector<Read>{{1, {}, 0}, {2, {}, 1}, {3, {}, 1}, {5, {0}}, {4, {0}}});
  CHECK(reads.parts()[1].reads_end == 2);
  CHECK(reads.parts()[2].reads_end == 3);
  CHECK(reads.parts()[2].staged.size() == 1);
}

TEST_CASE("a prompt that a policy chooses for is not staged where all of it is in slots") {
  DeviceSlots slots(8, 16);
  const DeviceSlot first = slots.open(1), second = slots.open(2), last = slots.open(6);
  slots.open(7);
  StepReads reads(rules_for_prompts());
  plan(reads, {{{1, 3, 7}, 8, 2}, {{1, 2, 6}, 8, 3}, {{1, 4, 7}, 8, 2}}, slots);
  CHECK(reads.through_ring() == std::vector<Read>{{3, {}, 1}, {4, {}, 1}});
  CHECK(reads.parts()[0].residents.empty());
  CHECK(reads.parts()[1].residents == std::vector<std::int32_t>{first, second, last});
  CHECK(reads.parts()[1].resident_tokens == 0);
  CHECK(reads.parts()[1].staged.empty());
  CHECK(reads.parts()[1].reads_end == 1);
  // Its first and its last block are where the first prompt left them.
  CHECK(reads.parts()[2].staged.empty());
  CHECK(reads.residents() == 4);
}

StepReads::Rules rules_for_whole_sequences() {
  StepReads::Rules whole = rules();
  whole.whole_sequences = true;
  return whole;
}

TEST_CASE("a whole sequence is staged, in its order, unless all of it is in slots") {
  DeviceSlots slots(8, 16);
  const DeviceSlot first = slots.open(1), second = slots.open(2), last = slots.open(6);
  StepReads reads(rules_for_whole_sequences());
  plan(reads, {{{1, 3, 6}, 8, 1}, {{1, 2}, 4, 4}, {{1, 4, 3, 6}, 12, 2}}, slots);
  CHECK(reads.parts()[0].kind == Kind::whole);
  CHECK(reads.parts()[0].staged == std::vector<StepReads::Part::Staged>{{0, first}, {2, last}});
  CHECK(reads.parts()[0].reads_end == 1);
  CHECK(reads.parts()[0].resident_tokens == 0);
  CHECK(reads.parts()[1].kind == Kind::everything);
  CHECK(reads.parts()[1].residents == std::vector<std::int32_t>{first, second});
  CHECK(reads.parts()[1].resident_tokens == 8);
  CHECK(reads.parts()[1].staged.empty());
  CHECK(reads.parts()[2].kind == Kind::whole);
  CHECK(reads.parts()[2].staged == std::vector<StepReads::Part::Staged>{{3, last}});
  CHECK(reads.through_ring() == std::vector<Read>{{3, {}, 1}, {4, {}, 1}, {3, {}, 2}});
  CHECK(reads.parts()[2].reads_end == 3);
}

TEST_CASE("whole sequences that are staged in other ways are no step as the last one") {
  DeviceSlots slots(8, 16);
  slots.open(5);
  slots.open(6);
  slots.open(7);
  StepReads reads(rules_for_whole_sequences());
  plan(reads, {{{1, 2, 5}, 8, 1}, {{1, 2, 6}, 8, 1}, {{1, 2, 7}, 8, 1}}, slots);
  CHECK_FALSE(reads.same_as_last());
  plan(reads, {{{1, 2, 5}, 9, 1}, {{1, 2, 6}, 9, 1}, {{1, 2, 7}, 9, 1}}, slots);
  CHECK(reads.same_as_last());
  // The same blocks come through the ring, but for others.
  plan(reads, {{{1, 2, 6}, 10, 1}, {{1, 2, 7}, 10, 1}}, slots);
  CHECK(reads.through_ring() == std::vector<Read>{{1, {}, 0}, {2, {}, 1}});
  CHECK_FALSE(reads.same_as_last());
  plan(reads, {{{1, 2, 6}, 11, 1}, {{1, 2, 5}, 11, 1}}, slots);
  CHECK_FALSE(reads.same_as_last());
}

TEST_CASE("what Quest chooses for reads nothing that is known before") {
  const DeviceSlots slots(4, 16);
  StepReads::Rules quest = rules();
  quest.quest = true;
  StepReads reads(quest);
  plan(reads, {{{1, 2}, 7, 1}, {{3, 4}, 4, 4}}, slots);
  CHECK(reads.any(Kind::quest));
  CHECK(blocks_through_ring(reads) == std::vector<BlockId>{3, 4});
}

TEST_CASE("the host's cores take their share, for rows before any prompt") {
  const DeviceSlots slots(4, 16);
  StepReads reads(rules());
  plan(reads, {{{1, 2, 3, 4}, 15, 1}, {{5, 6}, 4, 4}}, slots, 1);
  CHECK(reads.by_host() == std::vector<HostRead>{{0, 1}, {0, 2}, {0, 3}, {0, 4}});
  CHECK(blocks_through_ring(reads) == std::vector<BlockId>{5, 6});
  plan(reads, {{{1, 2, 3, 4}, 15, 1}}, slots, 0.5);
  CHECK(reads.by_host() == std::vector<HostRead>{{0, 3}, {0, 4}});
  CHECK(blocks_through_ring(reads) == std::vector<BlockId>{1, 2});
}

}  // namespace
}  // namespace nvllm::kvcache
