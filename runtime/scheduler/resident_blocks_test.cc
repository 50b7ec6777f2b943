#include <doctest/doctest.h>

#include <vector>

#include "runtime/scheduler/block_pools.h"

namespace nvllm::runtime {
namespace {

using Blocks = std::vector<kvcache::BlockId>;

TEST_CASE("a sequence keeps all that it can ever need, or what there is room for") {
  ResidentBlocks resident(5, 20);
  CHECK(resident.reserve(Blocks{0, 1}, 3) == 3);
  CHECK(resident.free() == 2);
  CHECK(resident.reserve(Blocks{7}, 4) == 2);
  CHECK(resident.reserve(Blocks{8}, 1) == 0);
  CHECK(resident.free() == 0);
}

TEST_CASE("places that were promised are taken, and come back with the others") {
  ResidentBlocks resident(4, 20);
  CHECK(resident.reserve(Blocks{0}, 3) == 3);
  resident.add(1);
  CHECK(resident.free() == 1);
  resident.release(Blocks{0, 1}, 3);
  CHECK(resident.free() == 4);
  CHECK(resident.reserve(Blocks{2}, 9) == 4);
  for (const kvcache::BlockId block : {3, 4, 5}) resident.add(block);
  resident.release(Blocks{2, 3, 4, 5, 6, 7}, 4);  // the last two were not reserved
  CHECK(resident.free() == 4);
}

TEST_CASE("a block that several keep takes one place, until the last of them leaves") {
  ResidentBlocks resident(4, 20);
  CHECK(resident.reserve(Blocks{0, 1}, 2) == 2);
  CHECK(resident.reserve(Blocks{0, 1, 2}, 4) == 4);
  CHECK(resident.free() == 0);
  CHECK(resident.reserve(Blocks{0, 1, 5}, 3) == 2);  // its shared prefix needs no slots
  resident.release(Blocks{0, 1}, 2);
  CHECK(resident.free() == 0);
  resident.release(Blocks{0, 1, 2}, 4);
  CHECK(resident.free() == 2);
  resident.release(Blocks{0, 1, 5}, 2);
  CHECK(resident.free() == 4);
}

TEST_CASE("where there is room for all blocks, all stay") {
  ResidentBlocks resident(6, 6);
  CHECK_FALSE(resident.limited());
  for (int i = 0; i < 3; ++i) CHECK(resident.reserve(Blocks{0}, 6) == 6);
}

TEST_CASE("without room nothing stays") {
  ResidentBlocks resident(0, 6);
  CHECK(resident.reserve(Blocks{0}, 6) == 0);
  resident.release(Blocks{0, 1}, 0);
  CHECK(resident.free() == 0);
}

}  // namespace
}  // namespace nvllm::runtime
