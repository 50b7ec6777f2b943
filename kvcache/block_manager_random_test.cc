// Random operations, against a slow model that has nothing in common with the block manager: it
// knows every block's whole prefix, and when it was freed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kvcache/block_manager.h"

namespace nvllm::kvcache {
namespace {

using Tokens = std::vector<std::int32_t>;

class Model {
 public:
  Model(std::int64_t blocks, std::int64_t block_size)
      : block_size_(block_size), blocks_(static_cast<std::size_t>(blocks)) {}

  std::int64_t findable(const Tokens& tokens) const {
    std::int64_t found = 0;
    while (found + block_size_ < std::ssize(tokens) &&
           held(Tokens(tokens.begin(), tokens.begin() + found + block_size_)) > 0) {
      found += block_size_;
    }
    return found;
  }

  std::int64_t free_blocks() const { return std::ranges::count(blocks_, 0, &Block::references); }

  // The manager gave a block that was cached; it must hold just this prefix.
  void share(BlockId block, const Tokens& prefix) {
    CHECK(at(block).prefix == prefix);
    ++at(block).references;
  }

  // The manager gave a block to be written; it must be the one whose turn it was.
  void give(BlockId block) {
    REQUIRE(at(block).references == 0);
    for (const Block& other : blocks_) {
      if (other.references > 0) continue;
      if (at(block).prefix.empty()) break;
      CHECK_FALSE(other.prefix.empty());
      CHECK(at(block).freed_at <= other.freed_at);
    }
    at(block) = {.references = 1, .prefix = {}, .freed_at = 0};
  }

  void commit(BlockId block, const Tokens& prefix) {
    for (Block& other : blocks_) {
      if (other.references == 0 && other.prefix == prefix) other.prefix.clear();
    }
    at(block).prefix = prefix;
  }

  void release(BlockId block) {
    Block& own = at(block);
    if (--own.references > 0) return;
    own.freed_at = ++clock_;
    if (!own.prefix.empty() && held(own.prefix) > 1) own.prefix.clear();
  }

  void forget() {
    for (Block& block : blocks_) block.prefix.clear();
  }

  std::int64_t references(BlockId block) const {
    return blocks_[static_cast<std::size_t>(block)].references;
  }

 private:
  struct Block {
    std::int64_t references = 0;
    Tokens prefix;  // all tokens up to the block's last; empty: cannot be found
    std::uint64_t freed_at = 0;
  };

  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
  std::int64_t held(const Tokens& prefix) const {
    return std::ranges::count(blocks_, prefix, &Block::prefix);
  }

  std::int64_t block_size_;
  std::vector<Block> blocks_;
  std::uint64_t clock_ = 0;
};

struct Sequence {
  Tokens tokens;
  std::int64_t committed = 0;  // tokens
  bool shares = true;
};

class Driver {
 public:
  Driver(std::uint32_t seed, std::int64_t blocks, std::int64_t block_size, BlockHash hash)
      : random_(seed),
        block_size_(block_size),
        manager_({.blocks = blocks, .block_size = block_size, .hash = hash}),
        model_(blocks, block_size) {}

  void operate() {
    const std::uint32_t choice = random_() % 100;
    if (choice < 25)
      begin();
    else if (choice < 65)
      grow();
    else if (choice < 85)
      commit();
    else if (choice < 99)
      end();
    else if (random_() % 4 == 0)
      forget();
    compare();
  }

  void finish() {
    while (!sequences_.empty()) end();
    CHECK(manager_.free_blocks() == manager_.total_blocks());
    CHECK(manager_.statistics().hit_tokens > 0);
  }

 private:
  // Two kinds of token, so that prefixes are often shared.
  std::int32_t random_token() { return static_cast<std::int32_t>(random_() % 2); }

  std::map<SequenceId, Sequence>::iterator any() {
    auto entry = sequences_.begin();
    std::advance(entry, random_() % sequences_.size());
    return entry;
  }

  void begin() {
    Sequence sequence;
    if (!sequences_.empty() && random_() % 2 == 0) {  // goes on where another one is
      sequence.tokens = any()->second.tokens;
      sequence.tokens.resize(random_() % (sequence.tokens.size() + 1));
    }
    for (std::uint32_t more = random_() % 12; more > 0; --more) {
      sequence.tokens.push_back(random_token());
    }
    const bool look_up = random_() % 8 != 0;
    const std::int64_t expected = look_up ? model_.findable(sequence.tokens) : 0;
    const auto prefix = manager_.find_prefix(sequence.tokens);
    if (look_up) CHECK(prefix.tokens == expected);
    const std::int64_t free = manager_.free_blocks();
    const SequenceId id = ++last_id_;
    REQUIRE(manager_.add_sequence(id, sequence.tokens, look_up) == expected);
    REQUIRE(std::ssize(manager_.blocks_of(id)) == expected / block_size_);
    if (look_up) CHECK(manager_.free_blocks() == free - prefix.free_blocks);
    sequence.committed = expected;
    for (std::int64_t i = 0; i < expected / block_size_; ++i) {
      model_.share(block(id, i), prefix_of(sequence.tokens, i));
    }
    sequences_.emplace(id, std::move(sequence));
  }

  void grow() {
    if (sequences_.empty()) return;
    auto& [id, sequence] = *any();
    const auto before = std::ssize(manager_.blocks_of(id));
    for (std::uint32_t more = random_() % 4; more > 0; --more) {
      sequence.tokens.push_back(random_token());
    }
    const auto tokens = std::ssize(sequence.tokens);
    const std::int64_t needed = (tokens + block_size_ - 1) / block_size_;
    const bool fits = needed - before <= model_.free_blocks();
    REQUIRE(manager_.allocate(id, tokens) == fits);
    REQUIRE(std::ssize(manager_.blocks_of(id)) == (fits ? std::max(before, needed) : before));
    for (auto i = before; i < std::ssize(manager_.blocks_of(id)); ++i) model_.give(block(id, i));
  }

  void commit() {
    if (sequences_.empty()) return;
    auto& [id, sequence] = *any();
    const std::int64_t room = std::ssize(manager_.blocks_of(id)) * block_size_;
    Tokens tokens = sequence.tokens;
    tokens.resize(std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(room)));
    manager_.cache_full_blocks(id, tokens);
    if (!sequence.shares) return;
    for (; sequence.committed + block_size_ <= std::ssize(tokens);
         sequence.committed += block_size_) {
      const std::int64_t i = sequence.committed / block_size_;
      model_.commit(block(id, i), prefix_of(tokens, i));
    }
  }

  void end() {
    if (sequences_.empty()) return;
    const auto entry = any();
    const auto blocks = manager_.blocks_of(entry->first);
    const std::vector<BlockId> given(blocks.begin(), blocks.end());
    manager_.remove_sequence(entry->first);
    std::for_each(given.rbegin(), given.rend(), [&](BlockId each) { model_.release(each); });
    sequences_.erase(entry);
  }

  void forget() {
    manager_.reset_prefix_cache();
    model_.forget();
    for (auto& [id, sequence] : sequences_) sequence.shares = false;
  }

  void compare() {
    manager_.check_invariants();
    REQUIRE(manager_.free_blocks() == model_.free_blocks());
    for (BlockId i = 0; i < manager_.total_blocks(); ++i) {
      REQUIRE(manager_.ref_count(i) == model_.references(i));
    }
  }

  BlockId block(SequenceId id, std::int64_t index) const {
    return manager_.blocks_of(id)[static_cast<std::size_t>(index)];
  }
  Tokens prefix_of(const Tokens& tokens, std::int64_t index) const {
    return {tokens.begin(), tokens.begin() + (index + 1) * block_size_};
  }

  std::mt19937 random_;
  std::int64_t block_size_;
  BlockManager manager_;
  Model model_;
  std::map<SequenceId, Sequence> sequences_;
  SequenceId last_id_ = 0;
};

// NVLLM_TEST_SCALE times as many operations.
int scaled(int operations) {
  const char* scale = std::getenv("NVLLM_TEST_SCALE");
  return operations * (scale == nullptr ? 1 : std::max(1, std::atoi(scale)));
}

void drive(BlockHash hash) {
  for (const std::int64_t blocks : {1, 4, 16, 50}) {
    for (const std::int64_t block_size : {1, 4}) {
      CAPTURE(blocks);
      CAPTURE(block_size);
      Driver driver(static_cast<std::uint32_t>(blocks * 8 + block_size), blocks, block_size, hash);
      for (int i = scaled(2500); i > 0; --i) driver.operate();
      driver.finish();
    }
  }
}

TEST_CASE("random operations: as the model says, with the real hash") {
  drive(nullptr);
}

TEST_CASE("random operations: as the model says, with a hash of two bits") {
  drive([](std::uint64_t before, std::span<const std::int32_t> tokens) -> std::uint64_t {
    return (before + static_cast<std::uint64_t>(tokens[0])) % 4;
  });
}

TEST_CASE("random operations: as the model says, with one hash for everything") {
  drive([](std::uint64_t, std::span<const std::int32_t>) -> std::uint64_t { return 0; });
}

}  // namespace
}  // namespace nvllm::kvcache
