#include "ipc/group.h"

#include <doctest/doctest.h>

#include <csignal>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "testing/ranks.h"

namespace nvllm::ipc {
using testing::run_ranks;

TEST_CASE("exchange gives every rank all blobs in rank order, many times") {
  run_ranks(4, [](Member& me) {
    for (int round = 0; round < 200; ++round) {
      const std::string mine = str("rank ", me.rank(), " round ", round);
      const auto all = me.exchange(std::as_bytes(std::span(mine)), "exchange");
      REQUIRE(all.size() == 4);
      for (int rank = 0; rank < 4; ++rank) {
        const auto& blob = all[static_cast<std::size_t>(rank)];
        CHECK(std::string(reinterpret_cast<const char*>(blob.data()), blob.size()) ==
              str("rank ", rank, " round ", round));
      }
    }
  });
}

TEST_CASE("nothing is in /dev/shm right after Group::create") {
  const Group group = Group::create({.size = 8});
  CHECK(testing::lingering_shm_names().empty());
}

}  // namespace nvllm::ipc
