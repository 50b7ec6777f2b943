#include "kvcache/block_manager.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace nvllm::kvcache {
namespace {

using Tokens = std::vector<std::int32_t>;

// first, first + 1, ...
Tokens counted(std::int32_t count, std::int32_t first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<BlockId> blocks_of(const BlockManager& blocks, SequenceId id) {
  const auto span = blocks.blocks_of(id);
  return {span.begin(), span.end()};
}

// A sequence from its begin to its commit, as the scheduler does it; returns how much was cached.
std::int64_t run(BlockManager& blocks, SequenceId id, const Tokens& tokens) {
  const std::int64_t cached = blocks.add_sequence(id, tokens);
  REQUIRE(blocks.allocate(id, std::ssize(tokens)));
  blocks.cache_full_blocks(id, tokens);
  blocks.check_invariants();
  return cached;
}

void run_and_end(BlockManager& blocks, SequenceId id, const Tokens& tokens) {
  run(blocks, id, tokens);
  blocks.remove_sequence(id);
  blocks.check_invariants();
}

TEST_CASE("blocks: a sequence takes as many as its tokens need, and gives them back") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  CHECK(blocks.add_sequence(1, counted(9)) == 0);
  CHECK(blocks.free_blocks() == 10);
  CHECK(blocks.allocate(1, 9));
  CHECK(blocks.blocks_of(1).size() == 3);
  CHECK(blocks.allocate(1, 12));
  CHECK(blocks.blocks_of(1).size() == 3);
  CHECK(blocks.allocate(1, 13));
  CHECK(blocks.blocks_of(1).size() == 4);
  CHECK(blocks.allocate(1, 1));  // never takes any away
  CHECK(blocks.blocks_of(1).size() == 4);
  CHECK(blocks.free_blocks() == 6);
  blocks.remove_sequence(1);
  CHECK(blocks.free_blocks() == 10);
  blocks.check_invariants();
}

TEST_CASE("blocks: a sequence gives its first ones back, which stay cached, and goes on") {
  BlockManager blocks({.blocks = 6, .block_size = 4});
  const Tokens tokens = counted(18);
  run(blocks, 1, tokens);
  const auto before = blocks_of(blocks, 1);
  blocks.release_first(1, 2);
  blocks.check_invariants();
  CHECK(blocks.free_blocks() == 3);
  CHECK(blocks.released_of(1) == 2);
  CHECK(blocks_of(blocks, 1) == std::vector<BlockId>{BlockManager::kNone, BlockManager::kNone,
                                                     before[2], before[3], before[4]});
  CHECK(blocks.find_prefix(tokens).tokens == 16);
  blocks.release_first(1, 1);  // again: nothing
  blocks.release_first(1, -3);
  CHECK(blocks.free_blocks() == 3);
  CHECK(blocks.allocate(1, 24));
  CHECK(blocks.free_blocks() == 2);
  blocks.cache_full_blocks(1, counted(24));
  blocks.check_invariants();
  CHECK(blocks.find_prefix(counted(25)).tokens == 24);
  blocks.remove_sequence(1);
  CHECK(blocks.free_blocks() == 6);
  blocks.check_invariants();
}

TEST_CASE("blocks: first ones that others took are no longer found, nor what follows them") {
  BlockManager blocks({.blocks = 6, .block_size = 4});
  run(blocks, 1, counted(20));
  blocks.release_first(1, 2);
  run(blocks, 2, counted(12, 100));  // takes all that is free
  CHECK(blocks.free_blocks() == 0);
  CHECK(blocks.find_prefix(counted(20)).tokens == 0);
  blocks.remove_sequence(2);
  run(blocks, 3, counted(8));  // the same as the first ones of 1, by other blocks
  CHECK(blocks.find_prefix(counted(20)).tokens == 8);
  blocks.remove_sequence(1);
  blocks.remove_sequence(3);
  blocks.check_invariants();
  CHECK(blocks.free_blocks() == 6);
}

TEST_CASE("blocks: first ones that are shared stay the others'") {
  BlockManager blocks({.blocks = 6, .block_size = 4});
  run(blocks, 1, counted(17));
  CHECK(run(blocks, 2, counted(17)) == 16);
  const BlockId first = blocks.blocks_of(2)[0];
  blocks.release_first(1, 3);
  CHECK(blocks.ref_count(first) == 1);
  CHECK(blocks.free_blocks() == 0);
  blocks.check_invariants();
  blocks.release_first(2, 3);
  CHECK(blocks.ref_count(first) == 0);
  CHECK(blocks.free_blocks() == 3);
  blocks.check_invariants();
}

TEST_CASE(
    "blocks: what is not in the prefix cache yet is not given back, unless it cannot get there") {
  for (const bool shares : {true, false}) {
    CAPTURE(shares);
    BlockManager blocks({.blocks = 6, .block_size = 4});
    blocks.add_sequence(1, counted(16), false);
    REQUIRE(blocks.allocate(1, 16));
    if (!shares) blocks.stop_sharing(1);
    blocks.release_first(1, 2);
    CHECK(blocks.released_of(1) == (shares ? 0 : 2));
    blocks.cache_full_blocks(1, counted(16));
    CHECK(blocks.find_prefix(counted(16)).tokens == (shares ? 12 : 0));
    blocks.check_invariants();
  }
}

TEST_CASE("blocks: what does not fit changes nothing") {
  BlockManager blocks({.blocks = 3, .block_size = 4});
  blocks.add_sequence(1, counted(4));
  REQUIRE(blocks.allocate(1, 4));
  const auto before = blocks_of(blocks, 1);
  CHECK_FALSE(blocks.allocate(1, 13));
  CHECK(blocks_of(blocks, 1) == before);
  CHECK(blocks.free_blocks() == 2);
  CHECK(blocks.allocate(1, 12));
}

TEST_CASE("blocks: how many hold so many tokens") {
  const BlockManager blocks({.blocks = 3, .block_size = 4});
  CHECK(blocks.blocks_for(0) == 0);
  CHECK(blocks.blocks_for(1) == 1);
  CHECK(blocks.blocks_for(4) == 1);
  CHECK(blocks.blocks_for(5) == 2);
  CHECK(blocks.total_blocks() == 3);
  CHECK(blocks.block_size() == 4);
}

TEST_CASE("prefixes: full blocks are found while they are in use, and shared") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  run(blocks, 1, counted(10));
  CHECK(blocks.add_sequence(2, joined(counted(9), {77, 78, 79})) == 8);
  CHECK(blocks.blocks_of(2)[0] == blocks.blocks_of(1)[0]);
  CHECK(blocks.blocks_of(2)[1] == blocks.blocks_of(1)[1]);
  CHECK(blocks.ref_count(blocks.blocks_of(1)[1]) == 2);
  CHECK(blocks.ref_count(blocks.blocks_of(1)[2]) == 1);
  blocks.remove_sequence(1);
  CHECK(blocks.ref_count(blocks.blocks_of(2)[1]) == 1);
  blocks.check_invariants();
}

TEST_CASE("prefixes: found after everybody left") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  run_and_end(blocks, 1, counted(12));
  CHECK(blocks.free_blocks() == 10);
  const auto prefix = blocks.find_prefix(counted(13));
  CHECK(prefix.tokens == 12);
  CHECK(prefix.free_blocks == 3);
  CHECK(blocks.add_sequence(2, counted(13)) == 12);
  CHECK(blocks.free_blocks() == 7);
  blocks.check_invariants();
}

TEST_CASE("prefixes: at least one token is left to be computed") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  run_and_end(blocks, 1, counted(8));
  CHECK(blocks.find_prefix(counted(8)).tokens == 4);
  CHECK(blocks.add_sequence(2, counted(8)) == 4);
  CHECK(blocks.add_sequence(3, counted(4)) == 0);
  CHECK(blocks.add_sequence(4, {}) == 0);
}

TEST_CASE("prefixes: a block counts with all that is before it") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  run_and_end(blocks, 1, joined(counted(4, 100), counted(5)));
  CHECK(blocks.find_prefix(joined(counted(4, 100), counted(5))).tokens == 8);
  CHECK(blocks.find_prefix(joined(counted(4, 200), counted(5))).tokens == 0);
  CHECK(blocks.find_prefix(counted(5)).tokens == 0);  // the second block's tokens, but at the start
}

TEST_CASE("prefixes: only what was committed is found") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  blocks.add_sequence(1, counted(12));
  REQUIRE(blocks.allocate(1, 12));
  CHECK(blocks.find_prefix(counted(12)).tokens == 0);
  blocks.cache_full_blocks(1, counted(7));
  CHECK(blocks.find_prefix(counted(12)).tokens == 4);
  blocks.cache_full_blocks(1, counted(12));
  CHECK(blocks.find_prefix(counted(13)).tokens == 12);
  blocks.check_invariants();
}

TEST_CASE("prefixes: without look-up nothing is found, but what is computed is shared") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  run_and_end(blocks, 1, counted(9));
  CHECK(blocks.add_sequence(2, counted(9), false) == 0);
  REQUIRE(blocks.allocate(2, 13));
  blocks.cache_full_blocks(2, counted(13));
  blocks.check_invariants();
  CHECK(blocks.find_prefix(counted(14)).tokens == 12);
}

TEST_CASE("prefixes: none when they are off") {
  BlockManager blocks({.blocks = 10, .block_size = 4, .prefix_caching = false});
  run_and_end(blocks, 1, counted(9));
  CHECK(blocks.add_sequence(2, counted(9)) == 0);
  CHECK(blocks.statistics().hit_tokens == 0);
}

TEST_CASE("prefixes: forgotten ones are not found, also not through sequences that go on") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  run_and_end(blocks, 1, counted(9));
  run(blocks, 2, counted(9));
  blocks.reset_prefix_cache();
  blocks.check_invariants();
  CHECK(blocks.find_prefix(counted(9)).tokens == 0);
  REQUIRE(blocks.allocate(2, 12));
  blocks.cache_full_blocks(2, counted(12));
  blocks.check_invariants();
  CHECK(blocks.find_prefix(counted(13)).tokens == 0);
  blocks.remove_sequence(2);
  run_and_end(blocks, 3, counted(9));
  CHECK(blocks.find_prefix(counted(9)).tokens == 8);
}

TEST_CASE("order: blocks without tokens are evicted before those that hold some") {
  BlockManager blocks({.blocks = 4, .block_size = 4});
  run_and_end(blocks, 1, counted(7));  // one full block, one that is not
  blocks.add_sequence(2, {});
  REQUIRE(blocks.allocate(2, 3 * 4));
  CHECK(blocks.find_prefix(counted(5)).tokens == 4);
  CHECK(blocks.statistics().evicted_blocks == 0);
  REQUIRE(blocks.allocate(2, 4 * 4));
  CHECK(blocks.find_prefix(counted(5)).tokens == 0);
  CHECK(blocks.statistics().evicted_blocks == 1);
}

TEST_CASE("order: the least recently used goes first, and finding is using") {
  BlockManager blocks({.blocks = 3, .block_size = 4});
  run_and_end(blocks, 1, counted(4, 100));
  run_and_end(blocks, 2, counted(4, 200));
  run_and_end(blocks, 3, counted(4, 300));
  CHECK(blocks.add_sequence(4, counted(5, 100)) == 4);
  blocks.remove_sequence(4);
  blocks.add_sequence(5, {});
  REQUIRE(blocks.allocate(5, 4));
  CHECK(blocks.find_prefix(counted(5, 200)).tokens == 0);
  REQUIRE(blocks.allocate(5, 8));
  CHECK(blocks.find_prefix(counted(5, 300)).tokens == 0);
  CHECK(blocks.find_prefix(counted(5, 100)).tokens == 4);
}

TEST_CASE("order: a prefix outlives what follows it") {
  BlockManager blocks({.blocks = 3, .block_size = 4});
  run_and_end(blocks, 1, counted(12));
  blocks.add_sequence(2, {});
  REQUIRE(blocks.allocate(2, 4));
  CHECK(blocks.find_prefix(counted(13)).tokens == 8);
  REQUIRE(blocks.allocate(2, 8));
  CHECK(blocks.find_prefix(counted(13)).tokens == 4);
}

TEST_CASE("order: blocks in use are never evicted") {
  BlockManager blocks({.blocks = 2, .block_size = 4});
  run(blocks, 1, counted(8));
  blocks.add_sequence(2, {});
  CHECK_FALSE(blocks.allocate(2, 1));
}

TEST_CASE(
    "doubles: two that computed the same leave one behind, and what follows either is found") {
  BlockManager blocks({.blocks = 8, .block_size = 4});
  // Eight tokens: the second block is computed by both, as one token must be.
  run(blocks, 1, counted(8));
  run(blocks, 2, counted(8));
  CHECK(blocks.blocks_of(1)[0] == blocks.blocks_of(2)[0]);
  CHECK(blocks.blocks_of(1)[1] != blocks.blocks_of(2)[1]);
  // The second goes on, the first one's blocks are evicted: what follows is still found.
  REQUIRE(blocks.allocate(2, 12));
  blocks.cache_full_blocks(2, counted(12));
  blocks.remove_sequence(1);
  blocks.check_invariants();
  blocks.add_sequence(3, {});
  REQUIRE(blocks.allocate(3, 5 * 4));
  CHECK(blocks.free_blocks() == 0);
  CHECK(blocks.statistics().evicted_blocks == 0);  // the double held nothing of its own
  CHECK(blocks.find_prefix(counted(13)).tokens == 12);
}

TEST_CASE("doubles: a block that is computed again takes the position of a free one") {
  BlockManager blocks({.blocks = 4, .block_size = 4});
  run_and_end(blocks, 1, counted(8));
  run(blocks, 2, counted(8));
  CHECK(blocks.find_prefix(counted(9)).tokens == 8);
  CHECK(blocks.find_prefix(counted(9)).free_blocks == 0);
  blocks.add_sequence(3, {});
  REQUIRE(blocks.allocate(3, 8));
  CHECK(blocks.statistics().evicted_blocks == 0);
  blocks.check_invariants();
}

TEST_CASE("hashes: one hash for everything, and nothing is mistaken for anything else") {
  const auto constant = [](std::uint64_t, std::span<const std::int32_t>) -> std::uint64_t {
    return 7;
  };
  BlockManager blocks({.blocks = 10, .block_size = 4, .hash = constant});
  run(blocks, 1, joined(counted(4, 100), counted(5)));
  CHECK(blocks.find_prefix(joined(counted(4, 200), counted(5))).tokens == 0);  // other tokens
  run(blocks, 2, joined(counted(4, 200), {50, 51, 52, 53, 54}));
  // The right tokens after the wrong predecessor.
  CHECK(blocks.find_prefix(joined(counted(4, 200), counted(5))).tokens == 4);
  CHECK(blocks.find_prefix(joined(counted(4, 100), counted(5))).tokens == 8);
  CHECK(blocks.find_prefix(counted(5)).tokens == 0);
}

TEST_CASE("hashes: a predecessor whose block holds something else now is no predecessor") {
  const auto constant = [](std::uint64_t, std::span<const std::int32_t>) -> std::uint64_t {
    return 7;
  };
  BlockManager blocks({.blocks = 3, .block_size = 4, .hash = constant});
  run(blocks, 1, joined(counted(4, 100), counted(4)));
  const BlockId first = blocks.blocks_of(1)[0];
  const BlockId second = blocks.blocks_of(1)[1];
  // Leaves the second block in the cache, but its predecessor in other hands: found alone, it is
  // younger.
  blocks.remove_sequence(1);
  run(blocks, 2, joined(counted(4, 100), counted(4)));
  blocks.remove_sequence(2);
  blocks.add_sequence(3, {});
  REQUIRE(blocks.allocate(3, 8));
  blocks.remove_sequence(3);
  run(blocks, 4, counted(12, 200));
  CHECK(blocks.find_prefix(joined(counted(4, 200), counted(5))).tokens == 4);
  CHECK(blocks.ref_count(first) + blocks.ref_count(second) == 2);
}

TEST_CASE("eviction: what blocks held is named once, and only what no block holds any more") {
  BlockManager blocks({.blocks = 4, .block_size = 4, .names_evicted = true});
  const Tokens prompt = counted(9);
  run(blocks, 1, prompt);
  const auto first = blocks.content_of(1, 0), second = blocks.content_of(1, 1);
  blocks.remove_sequence(1);
  CHECK(blocks.take_evicted().empty());
  run(blocks, 2, counted(12, 100));  // three blocks, of which two were free of tokens
  CHECK(blocks.take_evicted() == std::vector{second});
  CHECK(blocks.take_evicted().empty());
  run(blocks, 3, counted(4, 200));
  CHECK(blocks.take_evicted() == std::vector{first});
}

TEST_CASE("statistics: tokens asked for, tokens found") {
  BlockManager blocks({.blocks = 10, .block_size = 4});
  run_and_end(blocks, 1, counted(9));
  run_and_end(blocks, 2, counted(9));
  blocks.add_sequence(3, counted(9), false);
  CHECK(blocks.statistics().query_tokens == 18);
  CHECK(blocks.statistics().hit_tokens == 8);
}

}  // namespace
}  // namespace nvllm::kvcache
