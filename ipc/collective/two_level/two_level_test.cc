// Which groups sum in two levels, and by which algorithm.
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "ipc/collective/two_level/algorithm.h"
#include "ipc/stage_boxes.h"

namespace nvllm::ipc {
namespace {

// "2" for two ranks of a stage on each of its boxes, or why not.
std::string split(const std::vector<int>& box_ranks, int stages) {
  std::string why;
  const std::optional<int> ranks = two_level_ranks(box_ranks, stages, why);
  return ranks ? std::to_string(*ranks) : why;
}

constexpr std::size_t kBf16 = 2, kF32 = 4;

}  // namespace

TEST_CASE("boxes with equally many ranks of each stage sum in two levels") {
  CHECK(split({2, 2}, 1) == "2");
  CHECK(split({4, 4}, 1) == "4");
  CHECK(split({2, 2, 2}, 1) == "2");
  CHECK(split({2, 2, 2, 2}, 1) == "2");
  CHECK(split({2, 2, 2, 2}, 2) == "2");  // each stage on two boxes
}

TEST_CASE("stages that are each on one box have no second level") {
  CHECK(split({4}, 1) == "all ranks are on one box");
  CHECK(split({1}, 1) == "all ranks are on one box");
  CHECK(split({4}, 2) == "each stage is on one box");
  CHECK(split({4, 4}, 2) == "each stage is on one box");
  CHECK(split({4, 4}, 4) == "each stage is on one box");
  CHECK(split({1, 1}, 2) == "each stage is on one box");
}

TEST_CASE("one rank of a stage on each box has nobody to sum with there") {
  CHECK(split({1, 1}, 1) == "no box has two ranks of a stage");
  CHECK(split({1, 1, 1, 1}, 2) == "no box has two ranks of a stage");
}

TEST_CASE("uneven boxes do not sum in two levels") {
  const std::string two_one = "boxes have different numbers of a stage's ranks, such as 2 and 1";
  CHECK(split({1, 2}, 1) == "boxes have different numbers of a stage's ranks, such as 1 and 2");
  CHECK(split({2, 1}, 1) == two_one);
  CHECK(split({2, 2, 1}, 1) == two_one);
  // Stages cross boxes in unequal parts, though the boxes are equal: ranks 0, 1 | 2 of a stage.
  CHECK(split({2, 2, 2}, 2) == two_one);
  // One stage is on two boxes, the other on one of these.
  CHECK(split({2, 6}, 2) == "boxes have different numbers of a stage's ranks, such as 2 and 4");
}

TEST_CASE("slices are equal and start at multiples of 16 bytes") {
  CHECK(can_be_sliced(16, kBf16, 2));
  CHECK_FALSE(can_be_sliced(8, kBf16, 2));   // 8 bytes each
  CHECK_FALSE(can_be_sliced(17, kBf16, 2));  // unequal
  CHECK(can_be_sliced(12, kF32, 3));
  CHECK_FALSE(can_be_sliced(12, kF32, 4));  // 12 bytes each
  CHECK_FALSE(can_be_sliced(1, kF32, 2));
}

TEST_CASE("over two boxes small sums are whole on every rank") {
  const auto chosen = [](std::int64_t elements) {
    return choose_two_level_algorithm(elements, kBf16, 4, 2);
  };
  const std::int64_t limit = kEveryRankLimit / kBf16;
  CHECK(chosen(1) == TwoLevelAlgorithm::every_rank);
  CHECK(chosen(limit - 1) == TwoLevelAlgorithm::every_rank);
  CHECK(chosen(limit) == TwoLevelAlgorithm::every_rank);
  CHECK(chosen(limit + 1) == TwoLevelAlgorithm::first_ranks);
  CHECK(chosen(limit + 32) == TwoLevelAlgorithm::slices);
}

TEST_CASE("over three boxes and more no two ranks of a box add the same element") {
  for (const int boxes : {3, 4}) {
    for (std::int64_t elements = 1; elements < 70'000; ++elements) {
      const TwoLevelAlgorithm algorithm = choose_two_level_algorithm(elements, kF32, 2, boxes);
      REQUIRE(algorithm ==
              (elements % 8 == 0 ? TwoLevelAlgorithm::slices : TwoLevelAlgorithm::first_ranks));
    }
  }
}

}  // namespace nvllm::ipc
