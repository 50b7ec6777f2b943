#include "kvcache/window_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace nvllm::kvcache {
namespace {

using Contents = std::vector<WindowBlocks::Content>;

// Contents that the group of all tokens has for the blocks of a sequence's tokens.
Contents contents_of(std::int64_t blocks, WindowBlocks::Content first = 1) {
  Contents contents;
  for (std::int64_t i = 0; i < blocks; ++i)
    contents.push_back(first + static_cast<WindowBlocks::Content>(i));
  return contents;
}

void cache(WindowBlocks& blocks, SequenceId id, const Contents& contents) {
  blocks.cache_blocks(id, std::ssize(contents),
                      [&](std::int64_t i) { return contents[static_cast<std::size_t>(i)]; });
  blocks.check_invariants();
}

// A sequence of blocks of 4 tokens that is computed row by row up to a length, and ends.
void run_and_end(WindowBlocks& blocks, SequenceId id, std::int64_t length,
                 const Contents& contents) {
  blocks.add_sequence(id, length, {});
  for (std::int64_t row = 0; row < length; ++row) {
    blocks.release_unseen(id, row);
    blocks.allocate(id, row + 1);
    cache(blocks, id, Contents(contents.begin(), contents.begin() + (row + 1) / 4));
  }
  blocks.remove_sequence(id);
}

TEST_CASE("windows: a sequence has the blocks that its next row attends to, and no others") {
  WindowBlocks blocks({.blocks = 8, .block_size = 4, .window = 10, .chunk_rows = 4});
  blocks.add_sequence(1, 1000, {});
  for (std::int64_t row = 0; row < 1000; ++row) {
    blocks.release_unseen(1, row);
    blocks.allocate(1, row + 1);
    blocks.check_invariants();
    const std::int64_t first_token = std::max<std::int64_t>(row + 1 - 10, 0);
    const auto own = blocks.blocks_of(1);
    CHECK(std::ssize(own) == row / 4 + 1);
    CHECK(blocks.released_of(1) == first_token / 4);
    CHECK(own[static_cast<std::size_t>(first_token / 4)] != kNoBlock);
    CHECK(blocks.total_blocks() - blocks.free_blocks() <= window_blocks(10, 4));
  }
  blocks.remove_sequence(1);
  CHECK(blocks.free_blocks() == 8);
}

TEST_CASE("windows: every window of every length fits in so many blocks, and some need all") {
  for (const std::int64_t size : {1, 2, 3, 16}) {
    for (std::int64_t window = 1; window <= 40; ++window) {
      std::int64_t max_blocks = 0;
      for (std::int64_t row = 0; row < 100; ++row) {
        const std::int64_t first = std::max<std::int64_t>(row + 1 - window, 0) / size;
        max_blocks = std::max(max_blocks, row / size - first + 1);
      }
      CHECK(max_blocks == window_blocks(window, size));
    }
  }
}

TEST_CASE("windows: a prefix is found as far as the window behind it is there") {
  WindowBlocks blocks({.blocks = 6, .block_size = 4, .window = 8, .chunk_rows = 4});
  const Contents contents = contents_of(6);
  run_and_end(blocks, 1, 24, contents);
  // After 24 tokens the next row attends to tokens 17 to 24: to two blocks and the new one.
  CHECK(blocks.find_prefix(contents) == 24);
  CHECK(blocks.find_prefix(std::span(contents).first(5)) == 20);
  CHECK(blocks.find_prefix(contents_of(6, 100)) == 0);

  // What comes takes the blocks that were released first: the first two.
  blocks.add_sequence(2, 8, {});
  blocks.allocate(2, 8);
  CHECK(blocks.find_prefix(contents) == 24);
  CHECK(blocks.find_prefix(std::span(contents).first(4)) == 16);
  CHECK(blocks.find_prefix(std::span(contents).first(3)) == 0);
  CHECK(blocks.find_prefix(std::span(contents).first(2)) == 0);

  blocks.remove_sequence(2);
  blocks.add_sequence(3, 25, contents);
  blocks.check_invariants();
  CHECK(blocks.released_of(3) == 4);
  CHECK(blocks.blocks_of(3).size() == 6);
  // A shared block stays when one of both goes on.
  blocks.add_sequence(4, 25, contents);
  const BlockId shared = blocks.blocks_of(4)[4];
  CHECK(blocks.blocks_of(3)[4] == shared);
  CHECK(blocks.free_blocks() == 4);
  blocks.remove_sequence(4);
  CHECK(blocks.blocks_of(3)[4] == shared);
  CHECK(blocks.free_blocks() == 4);
  blocks.check_invariants();
}

TEST_CASE("windows: what two sequences computed is found once, and a free one gives way") {
  WindowBlocks blocks({.blocks = 6, .block_size = 4, .window = 8, .chunk_rows = 4});
  const Contents contents = contents_of(2);
  for (const SequenceId id : {1, 2}) {
    blocks.add_sequence(id, 8, {});
    blocks.allocate(id, 8);
    cache(blocks, id, contents);
  }
  blocks.remove_sequence(2);
  blocks.check_invariants();
  CHECK(blocks.find_prefix(contents) == 8);
  blocks.remove_sequence(1);
  CHECK(blocks.find_prefix(contents) == 8);
  blocks.add_sequence(3, 8, {});
  blocks.allocate(3, 8);
  cache(blocks, 3, contents);  // computed once more, perhaps since it was not found
  CHECK(blocks.find_prefix(contents) == 8);
  blocks.remove_sequence(3);
  blocks.check_invariants();
}

TEST_CASE(
    "windows: chunks take what others were not promised, and admission leaves room for them") {
  // Each is promised 3 blocks; a chunk takes 4 more.
  WindowBlocks blocks({.blocks = 16, .block_size = 4, .window = 8, .chunk_rows = 16});
  CHECK(window_blocks(8, 4) == 3);
  std::int64_t running = 0;
  for (; blocks.has_room_for(1000); ++running)
    blocks.add_sequence(static_cast<SequenceId>(running), 1000, {});
  CHECK(running == 4);  // 12 blocks, and 4 for a chunk
  CHECK(blocks.max_tokens(0) == (3 + 4) * 4);
  blocks.allocate(0, 28);
  CHECK(blocks.max_tokens(1) == 3 * 4);
  blocks.allocate(1, 12);
  blocks.check_invariants();
  blocks.release_unseen(0, 28);
  CHECK(blocks.max_tokens(1) == 7 * 4);
  // Short sequences need no blocks for chunks beyond their own lengths.
  for (std::int64_t id = 0; id < running; ++id) blocks.remove_sequence(static_cast<SequenceId>(id));
  for (running = 0; blocks.has_room_for(8); ++running)
    blocks.add_sequence(static_cast<SequenceId>(running), 8, {});
  CHECK(running == 8);
}

TEST_CASE("windows: one sequence alone always has room, in however few blocks") {
  WindowBlocks blocks({.blocks = 3, .block_size = 4, .window = 8, .chunk_rows = 1000});
  CHECK(blocks.has_room_for(1000));
  blocks.add_sequence(1, 1000, {});
  CHECK(!blocks.has_room_for(1));
  CHECK(blocks.max_tokens(1) == 12);
  WindowBlocks too_few({.blocks = 2, .block_size = 4, .window = 8, .chunk_rows = 1000});
  CHECK(!too_few.has_room_for(1000));
  CHECK(too_few.has_room_for(8));
}

TEST_CASE("windows: a sequence that comes back has blocks of its own for what its next row needs") {
  WindowBlocks blocks({.blocks = 8, .block_size = 4, .window = 8, .chunk_rows = 4});
  blocks.add_computed_sequence(1, 100, 21);
  CHECK(blocks.blocks_of(1).size() == 6);
  CHECK(blocks.released_of(1) == 3);  // row 21 attends to tokens 14 to 21
  cache(blocks, 1, contents_of(5));
  CHECK(blocks.find_prefix(contents_of(5)) == 20);
}

// Random sequences against a model that knows what each block was last written with.
TEST_CASE("windows: random sequences keep what they wrote, and find what they were promised") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto from = [&](std::int64_t low, std::int64_t high) {
      return low + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(high - low + 1));
    };
    const std::int64_t size = from(1, 4), window = from(1, 20);
    WindowBlocks blocks({.blocks = window_blocks(window, size) + from(0, 20),
                         .block_size = size,
                         .window = window,
                         .chunk_rows = from(1, 20)});
    struct Running {
      WindowBlocks::Content stream = 0;  // which of few token sequences it has
      std::int64_t computed = 0, max_length = 0;
    };
    std::map<SequenceId, Running> running;
    std::map<BlockId, WindowBlocks::Content> written;
    SequenceId next = 1;
    std::uint64_t found = 0;
    for (int turn = 0; turn < 400; ++turn) {
      if (from(0, 3) == 0) {
        Running added{.stream = static_cast<WindowBlocks::Content>(from(1, 3)) * 1000,
                      .max_length = from(1, 60)};
        const Contents all = contents_of(added.max_length / size, added.stream);
        added.computed = blocks.find_prefix(all);
        if (added.computed >= added.max_length) added.computed = 0;
        if (!blocks.has_room_for(added.max_length)) continue;
        found += static_cast<std::uint64_t>(added.computed);
        blocks.add_sequence(next, added.max_length,
                            std::span(all).first(static_cast<std::size_t>(added.computed / size)));
        running.emplace(next++, added);
      }
      for (auto& [id, one] : running) blocks.release_unseen(id, one.computed);
      for (auto it = running.begin(); it != running.end();) {
        auto& [id, one] = *it;
        const std::int64_t end =
            std::min({one.max_length, one.computed + from(1, 20), blocks.max_tokens(id)});
        REQUIRE(end > one.computed);
        blocks.allocate(id, end);
        const auto own = blocks.blocks_of(id);
        const Contents all = contents_of(divide_up(end, size), one.stream);
        for (std::int64_t i = one.computed / size; i < std::ssize(own); ++i)
          written[own[static_cast<std::size_t>(i)]] = all[static_cast<std::size_t>(i)];
        for (std::int64_t i = blocks.first_needed(one.computed); i < std::ssize(own); ++i)
          REQUIRE(written.at(own[static_cast<std::size_t>(i)]) == all[static_cast<std::size_t>(i)]);
        one.computed = end;
        cache(blocks, id, Contents(all.begin(), all.begin() + end / size));
        const bool over = end == one.max_length || from(0, 9) == 0;
        if (over) blocks.remove_sequence(id);
        it = over ? running.erase(it) : std::next(it);
        blocks.check_invariants();
      }
    }
    for (const auto& [id, one] : running) blocks.remove_sequence(id);
    CHECK(blocks.free_blocks() == blocks.total_blocks());
    if (seed == 0) CHECK(found > 0);
  }
}

}  // namespace
}  // namespace nvllm::kvcache
