// Policies in every cache that supports them, SparseCache over a paged and a layer-wise one, and
// ChunkedCache: with unlimited budgets the result is full attention; with smaller ones, a
// sequence's results depend neither on the cache, nor on concurrent sequences, nor on the previous
// owner of its slot and blocks.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/cases.h"
#include "kvcache/policies/sparse_cache_fixture.h"
#include "testing/sanitizers.h"

namespace nvllm::kvcache {
namespace {

using namespace sparse_test;  // NOLINT(google-build-using-namespace)

// Blocks from all over the cache, room for a few hundred tokens.
Sequence sequence_of(std::uint32_t slot, unsigned seed, unsigned places) {
  Sequence sequence(slot, seed);
  for (BlockId i = 0; i < 22; ++i) {
    sequence.blocks.push_back(static_cast<BlockId>((places * 22 + i) * 7 % 157));
  }
  return sequence;
}

// Prompts, at once and in parts, long and short, and tokens, in steps of many kinds.
void play(CachePlayer& player, Sequence& a, Sequence& b, Sequence& c) {
  player.step({{&a, 150}, {&b, 30}});
  player.step({{&b, 1}, {&a, 101}, {&c, 260}});
  player.step({{&b, 1}, {&a, 1}, {&c, 40}});
  for (int i = 0; i < 6; ++i) player.step({{&b, 1}, {&a, 1}, {&c, 1}});
  player.step({{&c, 17}, {&b, 1}, {&a, 2}});
}

// A few roundings of float32 and different orders of summing up; values are below 5.
constexpr double kRoundings = 2e-5;

// From a row on.
double max_difference(const Sequence& a, const Sequence& b, std::size_t row = 0) {
  double max = 0;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    REQUIRE(a.results[layer].size() == b.results[layer].size());
    for (std::size_t i = row * kHeads * kHeadDim; i < a.results[layer].size(); ++i) {
      const double apart = std::fabs(double{a.results[layer][i]} - b.results[layer][i]);
      if (!(apart <= max)) max = apart;
    }
  }
  return max;
}

bool same_bits(const Sequence& a, const Sequence& b) {
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    if (!kernels::testing::same_bits(a.results[layer], b.results[layer])) return false;
  }
  return true;
}

std::vector<Sequence> three() {
  return {sequence_of(0, 1, 0), sequence_of(1, 2, 1), sequence_of(2, 3, 2)};
}

std::vector<Sequence> played(Backend& backend, const Policies& policies, Where where) {
  CachePlayer player(backend, policies, 16, where);
  std::vector<Sequence> sequences = three();
  play(player, sequences[0], sequences[1], sequences[2]);
  return sequences;
}

TEST_CASE("with budgets for everything, policies attend to everything, wherever it is kept") {
  BACKEND_OR_SKIP(backend);
  const std::vector<Sequence> right = played(*backend, {}, Where::paged);
  Policies all = xattention(1);
  all.quest_budget = kMaxTokens;
  Policies lines = minference(MInference::kEverything);
  lines.quest_budget = kMaxTokens;
  for (const Where where : kEverywhere) {
    CAPTURE(static_cast<int>(where));
    for (const Policies& policies : {all, lines}) {
      const std::vector<Sequence> got = played(*backend, policies, where);
      for (std::size_t i = 0; i < right.size(); ++i) {
        CHECK(max_difference(got[i], right[i]) < kRoundings);
      }
    }
  }
}

// What races there are, are the caches', whatever the policy.
std::vector<Policies> frugal() {
  Policies tiles = xattention(0.6f);
  Policies lines = minference(MInference::kPublished);
  tiles.quest_budget = 64;
  lines.quest_budget = 48;
  if (testing::kSanitized) return {tiles};
  return {tiles, lines};
}

TEST_CASE("with less, they attend to less") {
  BACKEND_OR_SKIP(backend);
  const std::vector<Sequence> full = played(*backend, {}, Where::paged);
  for (const Policies& policies : frugal()) {
    const std::vector<Sequence> got = played(*backend, policies, Where::paged);
    CHECK(max_difference(got[0], full[0]) > 1e-3);
    CHECK(max_difference(got[2], full[2]) > 1e-3);
  }
}

TEST_CASE("of keys and values in host memory they choose the same") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    const std::vector<Sequence> right = played(*backend, policies, Where::paged);
    for (const Where where : {Where::chunked, Where::hybrid, Where::layerwise}) {
      CAPTURE(static_cast<int>(where));
      const std::vector<Sequence> got = played(*backend, policies, where);
      for (std::size_t i = 0; i < right.size(); ++i) {
        CHECK(max_difference(got[i], right[i]) < kRoundings);
      }
    }
  }
}

TEST_CASE("layer by layer, parts of a step are chosen for as steps are") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    CachePlayer parts(*backend, policies, 16, Where::layerwise), steps(*backend, policies);
    std::vector<Sequence> got = three(), right = three();
    // 140 of the first; then 111 of it and 29 of the second; then 1 and 139 of the third; then 121
    // of it.
    parts.step({{&got[0], 251}, {&got[1], 30}, {&got[2], 260}}, 140);
    steps.step({{&right[0], 140}});
    steps.step({{&right[0], 111}, {&right[1], 29}});
    steps.step({{&right[1], 1}, {&right[2], 139}});
    steps.step({{&right[2], 121}});
    for (int i = 0; i < 3; ++i) {
      parts.step({{&got[1], 1}, {&got[0], 1}, {&got[2], 1}}, i == 1 ? 2 : kMaxRows);
      steps.step({{&right[1], 1}, {&right[0], 1}, {&right[2], 1}});
    }
    for (std::size_t i = 0; i < right.size(); ++i) {
      CHECK(max_difference(got[i], right[i]) < kRoundings);
    }
  }
}

// The prompt comes in several steps, and layer by layer also in parts. Tiles of rows begin with a
// call.
TEST_CASE("the last 128 rows of a prompt attend to everything, wherever it is kept") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    CAPTURE(static_cast<int>(where));
    const std::int64_t micro_batch_rows = where == Where::layerwise ? 150 : kMaxRows;
    CachePlayer sparse(*backend, xattention(0.3f), 16, where), dense(*backend, {});
    std::vector<Sequence> got = three(), right = three();
    sparse.step({{&got[0], 300}, {&got[1], 30}}, micro_batch_rows);
    sparse.step({{&got[1], 1}, {&got[0], 49}, {&got[2], 350}}, micro_batch_rows, 0);
    dense.step({{&right[0], 300}, {&right[1], 30}});
    dense.step({{&right[1], 1}, {&right[0], 49}, {&right[2], 350}});
    CHECK(max_difference(got[0], right[0]) > 1e-3);
    CHECK(max_difference(got[0], right[0], 300) < kRoundings);
    CHECK(max_difference(got[2], right[2], where == Where::layerwise ? 250 : 128) < kRoundings);
  }
}

// So do those that come in the step before the last one, as it knows how many are to come.
TEST_CASE("a prompt's last 128 rows may come in several steps") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    CAPTURE(static_cast<int>(where));
    const std::int64_t micro_batch_rows = where == Where::layerwise ? 150 : kMaxRows;
    CachePlayer sparse(*backend, xattention(0.3f), 16, where), dense(*backend, {});
    Sequence got(0, 1);
    for (BlockId block = 0; block < 36; ++block) got.blocks.push_back(block * 7 % 157);
    Sequence right = got;
    sparse.step({{&got, 500}}, micro_batch_rows, 49);
    sparse.step({{&got, 40}}, micro_batch_rows, 9);
    sparse.step({{&got, 9}}, micro_batch_rows, 0);
    for (const std::int64_t rows : {500, 40, 9}) dense.step({{&right, rows}});
    CHECK(max_difference(got, right) > 1e-3);
    CHECK(max_difference(got, right, 549 - 128) < kRoundings);
  }
}

// Three long prompts, in one step, of which each has blocks in common with the one before the last.
TEST_CASE("prompts that share prefixes find each its own") {
  BACKEND_OR_SKIP(backend);
  for (const Policies& policies : frugal()) {
    std::vector<std::vector<Sequence>> all;
    for (const Where where : kEverywhere) {
      CachePlayer player(*backend, policies, 16, where);
      Sequence first = sequence_of(0, 1, 0), other = sequence_of(1, 2, 1);
      player.step({{&first, 160}, {&other, 40}});
      player.step({{&other, 90}, {&first, 2}});
      Sequence like_first = sequence_of(2, 1, 2), like_other = sequence_of(3, 2, 3);
      std::copy_n(first.blocks.begin(), 10, like_first.blocks.begin());
      std::copy_n(other.blocks.begin(), 6, like_other.blocks.begin());
      like_first.length = 160;
      like_other.length = 96;
      player.step({{&first, 33}, {&other, 18}, {&like_first, 50}, {&like_other, 17}});
      player.step({{&like_other, 1}, {&like_first, 20}, {&first, 1}, {&other, 3}});
      all.push_back({first, other, like_first, like_other});
    }
    for (const std::vector<Sequence>& got : all) {
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(max_difference(got[i], all.front()[i]) < kRoundings);
      }
    }
  }
}

TEST_CASE("what a sequence gets does not depend on what runs beside it") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    for (const Policies& policies : frugal()) {
      const Sequence a = played(*backend, policies, where)[0];
      CachePlayer alone(*backend, policies, 16, where);
      Sequence a_alone = sequence_of(0, 1, 0);
      for (const std::int64_t rows : {150, 101, 1, 1, 1, 1, 1, 1, 1, 2}) {
        alone.step({{&a_alone, rows}});
      }
      // Where one step loads layers and another reads on the host, tokens are attended to by two
      // kernels.
      CHECK((where == Where::layerwise ? max_difference(a, a_alone) < kRoundings
                                       : same_bits(a, a_alone)));
    }
  }
}

TEST_CASE("who takes a slot and blocks over finds nothing of the one before") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    for (const Policies& policies : frugal()) {
      CachePlayer used(*backend, policies, 16, where), fresh(*backend, policies, 16, where);
      Sequence before = sequence_of(0, 77, 0), other = sequence_of(1, 78, 1),
               third = sequence_of(2, 79, 2);
      play(used, before, other, third);
      used.end(before);
      Sequence after = sequence_of(0, 5, 0), right = after;
      for (CachePlayer* player : {&used, &fresh}) {
        Sequence& mine = player == &used ? after : right;
        player->step({{&mine, 130}});
        for (int i = 0; i < 20; ++i) player->step({{&mine, 1}});
      }
      CHECK(same_bits(after, right));
    }
  }
}

TEST_CASE("chunked: prompts are chosen for beside rows that the host's cores attend to") {
  BACKEND_OR_SKIP(backend);
  for (Policies policies : frugal()) {
    policies.quest_budget = 0;
    const std::vector<Sequence> right = played(*backend, policies, Where::paged);
    policies.host_share = 0.5;
    const std::vector<Sequence> got = played(*backend, policies, Where::chunked);
    for (std::size_t i = 0; i < right.size(); ++i) {
      CHECK(max_difference(got[i], right[i]) < kRoundings);
    }
  }
}

TEST_CASE("chunked: a prompt policy moves what attention to everything moves") {
  BACKEND_OR_SKIP(backend);
  KvTraffic traffic[2];
  for (const bool chooses : {false, true}) {
    CachePlayer player(*backend, chooses ? xattention(0.6f) : Policies{}, 16, Where::chunked);
    std::vector<Sequence> sequences = three();
    play(player, sequences[0], sequences[1], sequences[2]);
    traffic[chooses ? 1 : 0] = player.traffic();
  }
  CHECK(traffic[0].to_device > 0);
  CHECK(traffic[1] == traffic[0]);
}

TEST_CASE("caches with policies take what the arithmetic says, to the byte") {
  BACKEND_OR_SKIP(backend);
  for (const Where where : kEverywhere) {
    for (const Policies& policies : frugal()) {
      CAPTURE(static_cast<int>(where));
      const CachePlayer player(*backend, policies, 16, where);
      CHECK(backend->ledger().total(MemoryKind::device) == player.predicted_bytes());
    }
  }
}

TEST_CASE("quest refuses blocks that are no multiple of its pages") {
  BACKEND_OR_SKIP(backend);
  Policies quest;
  quest.quest_budget = 64;
  std::string message;
  try {
    CachePlayer player(*backend, quest, 8);
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message == "quest: blocks have 8 tokens; pass --block-size a multiple of 16");
}

}  // namespace
}  // namespace nvllm::kvcache
