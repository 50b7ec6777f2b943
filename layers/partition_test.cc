#include "layers/partition.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/text.h"

namespace nvllm::layers {
namespace {

std::vector<std::int64_t> sizes_of(std::int64_t total, int ranks) {
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank)
    sizes.push_back(shard_range(total, {rank, ranks}).size());
  return sizes;
}

// "0-5:0-2 ...": the query heads and KV heads of every rank.
std::string heads_as_text(std::int64_t heads, std::int64_t kv_heads, int ranks) {
  std::string text;
  const auto range = [](const Range& range) {
    if (range.size() == 0) return std::string("none");
    return str(range.begin, '-', range.end - 1);
  };
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadShard part = heads_of(heads, kv_heads, {rank, ranks});
    text += str(rank > 0 ? " " : "", range(part.q), ':', range(part.kv));
    if (part.first_head != 0) text += str('+', part.first_head);
  }
  return text;
}

TEST_CASE("a pipeline's layers are divided as evenly as can be, and the first stages have more") {
  const auto layers = [](std::int64_t total, int stages) {
    std::vector<Range> ranges;
    for (int stage = 0; stage < stages; ++stage)
      ranges.push_back(layers_of(total, {stage, stages}));
    return ranges;
  };
  CHECK(layers(7, 1) == std::vector<Range>{{0, 7}});
  CHECK(layers(8, 2) == std::vector<Range>{{0, 4}, {4, 8}});
  CHECK(layers(8, 3) == std::vector<Range>{{0, 3}, {3, 6}, {6, 8}});
  CHECK(layers(3, 3) == std::vector<Range>{{0, 1}, {1, 2}, {2, 3}});
}

TEST_CASE("with tp_invariant ranks own whole segments, of which there are as many for all ranks") {
  CHECK(segments_of(32) == 8);
  CHECK(segments_of(14) == 7);
  CHECK(segments_of(9) == 3);
  CHECK(segments_of(11) == 1);
  CHECK(segments_of_parts(4864) == 8);  // 608 each
  CHECK(segments_of_parts(80) == 5);    // 16 each
  CHECK(segments_of_parts(13) == 1);
  CHECK(segments_of_parts(0) == 1);
  const auto part = [](std::int64_t total, int rank, int ranks) {
    return shard_range(total, {.rank = rank, .ranks = ranks, .tp_invariant = true});
  };
  CHECK(part(4864, 0, 3) == Range{0, 3 * 608});
  CHECK(part(4864, 1, 3) == Range{3 * 608, 6 * 608});
  CHECK(part(4864, 2, 3) == Range{6 * 608, 4864});
  CHECK(part(13, 0, 2) == Range{0, 13});
  CHECK(part(13, 1, 2).size() == 0);
}

TEST_CASE("with tp_invariant heads are cut at segments, of KV heads where there are four or more") {
  const auto heads = [](std::int64_t all, std::int64_t kv, int rank, int ranks) {
    return heads_of(all, kv, {.rank = rank, .ranks = ranks, .tp_invariant = true});
  };
  CHECK(heads(32, 8, 0, 1).segments == 8);
  CHECK(heads(32, 8, 1, 3).q == Range{12, 24});  // three of the four KV heads
  CHECK(heads(32, 8, 1, 3).kv == Range{3, 6});
  CHECK(heads(16, 2, 0, 1).segments == 8);  // two query heads each
  CHECK(heads(16, 2, 1, 3).q == Range{6, 12});
  CHECK(heads(16, 2, 1, 3).kv == Range{0, 2});
  CHECK(heads(16, 2, 1, 3).first_head == 6);
  CHECK(heads(16, 2, 1, 2).first_head == 0);
  CHECK(heads(9, 3, 3, 4).q.size() == 0);  // three segments
}

TEST_CASE("a vocabulary has eight segments, whatever its size") {
  for (const std::int64_t vocabulary : {5, 131, 256, 1003, 151936}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      std::int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range own =
            vocabulary_part_of(vocabulary, {.rank = rank, .ranks = ranks, .tp_invariant = true});
        CHECK(own.begin == end);
        end = own.end;
        bool at_border = own.size() == 0;
        for (int segment = 0; segment < kMaxSegments; ++segment) {
          at_border |= vocabulary_segment(vocabulary, segment).end == own.end;
        }
        CHECK(at_border);
      }
      CHECK(end == vocabulary);
    }
  }
}

TEST_CASE("dimensions are cut at aligned places, and the first ranks own more") {
  using Sizes = std::vector<std::int64_t>;
  CHECK(sizes_of(49152, 2) == Sizes{24576, 24576});
  CHECK(sizes_of(49152, 4) == Sizes{12288, 12288, 12288, 12288});
  CHECK(sizes_of(49152, 3) == Sizes{16384, 16384, 16384});
  CHECK(sizes_of(151936, 4) == Sizes{38016, 38016, 37952, 37952});
  CHECK(sizes_of(777, 2) == Sizes{389, 388});
  CHECK(sizes_of(104, 3) == Sizes{40, 32, 32});
  CHECK(sizes_of(2, 3) == Sizes{2, 0, 0});  // one granule of two
  CHECK(sizes_of(3, 4) == Sizes{1, 1, 1, 0});
  CHECK(sizes_of(0, 2) == Sizes{0, 0});
}

TEST_CASE("nine query heads and three KV heads go to any number of ranks") {
  CHECK(heads_as_text(9, 3, 1) == "0-8:0-2");
  CHECK(heads_as_text(9, 3, 2) == "0-5:0-1 6-8:2-2");
  CHECK(heads_as_text(9, 3, 3) == "0-2:0-0 3-5:1-1 6-8:2-2");
  // More ranks than KV heads: query heads are cut anywhere, with the KV heads that they need.
  CHECK(heads_as_text(9, 3, 4) == "0-2:0-0 3-4:1-1 5-6:1-2+2 7-8:2-2+1");
}

TEST_CASE("with more ranks than heads the last ranks own none") {
  CHECK(heads_as_text(2, 1, 3) == "0-0:0-0 1-1:0-0+1 none:none");
  CHECK(heads_as_text(2, 2, 3) == "0-0:0-0 1-1:1-1 none:none");
  CHECK(heads_as_text(6, 6, 4) == "0-1:0-1 2-3:2-3 4-4:4-4 5-5:5-5");
  CHECK(heads_as_text(6, 2, 4) == "0-1:0-0 2-3:0-1+2 4-4:1-1+1 5-5:1-1+2");
}

template <typename ShardRange>
void covers_without_overlap(ShardRange shard_range, int ranks, std::int64_t total) {
  std::int64_t at = 0;
  std::int64_t before = total;
  for (int rank = 0; rank < ranks; ++rank) {
    const Range part = shard_range(Shard{rank, ranks});
    REQUIRE(part.begin == at);
    REQUIRE(part.end >= part.begin);
    REQUIRE(part.size() <= before);
    before = part.size();
    at = part.end;
  }
  REQUIRE(at == total);
}

TEST_CASE("parts cover a dimension in order, without overlap, and shrink by one granule at most") {
  for (std::int64_t total = 0; total <= 1100; ++total) {
    CAPTURE(total);
    std::int64_t granule = 1;
    while (granule < 64 && total % (2 * granule) == 0) granule *= 2;
    for (int ranks = 1; ranks <= 8; ++ranks) {
      CAPTURE(ranks);
      covers_without_overlap([&](Shard shard) { return shard_range(total, shard); }, ranks, total);
      covers_without_overlap([&](Shard shard) { return even_part_of(total, shard); }, ranks, total);
      const auto part = [&](int rank) { return shard_range(total, {rank, ranks}); };
      for (int rank = 0; rank < ranks; ++rank) REQUIRE(part(rank).begin % granule == 0);
      REQUIRE(part(0).size() - part(ranks - 1).size() <= granule);
      REQUIRE(even_part_of(total, {0, ranks}).size() -
                  even_part_of(total, {ranks - 1, ranks}).size() <=
              1);
    }
  }
}

TEST_CASE("every rank has the KV heads of its query heads, and no others") {
  for (std::int64_t kv_heads = 1; kv_heads <= 12; ++kv_heads) {
    for (std::int64_t group = 1; group <= 8; ++group) {
      for (int ranks = 1; ranks <= 8; ++ranks) {
        CAPTURE(kv_heads);
        CAPTURE(group);
        CAPTURE(ranks);
        const std::int64_t heads = kv_heads * group;
        std::int64_t at = 0;
        std::int64_t kv_total = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const HeadShard part = heads_of(heads, kv_heads, {rank, ranks});
          REQUIRE(part.q.begin == at);
          at = part.q.end;
          kv_total += part.kv.size();
          REQUIRE(part.group == group);
          if (part.q.size() == 0) {
            REQUIRE(part.kv == Range{0, 0});
            continue;
          }
          REQUIRE(part.kv.begin == part.q.begin / group);
          REQUIRE(part.kv.end == (part.q.end - 1) / group + 1);
          // The attention kernel's mapping of a query head to its KV head on this rank.
          for (std::int64_t head = 0; head < part.q.size(); ++head) {
            REQUIRE(part.kv.begin + (part.first_head + head) / group ==
                    (part.q.begin + head) / group);
          }
        }
        REQUIRE(at == heads);
        // nothing is replicated unnecessarily
        if (ranks <= kv_heads) REQUIRE(kv_total == kv_heads);
      }
    }
  }
}

// Checks the parts of every rank in groups of up to 8.
bool some_part_is_uneven(std::int64_t total, std::int64_t matrices) {
  Shard shard{.tp_invariant = true};
  for (shard.ranks = 1; shard.ranks <= kMaxSegments; ++shard.ranks) {
    for (shard.rank = 0; shard.rank < shard.ranks; ++shard.rank) {
      if (matrices * shard_range(total, shard).size() % 8 != 0) return true;
    }
  }
  return false;
}

TEST_CASE("tp_invariant: whether some rank's part may be no multiple of 8 is known to all") {
  for (std::int64_t total = 0; total <= 2048; ++total) {
    for (const std::int64_t matrices : {1, 2}) {
      CAPTURE(total);
      CAPTURE(matrices);
      CHECK(has_uneven_parts(total, {.tp_invariant = true}, matrices) ==
            some_part_is_uneven(total, matrices));
    }
  }
  CHECK(!has_uneven_parts(37, {}));
}

}  // namespace
}  // namespace nvllm::layers
