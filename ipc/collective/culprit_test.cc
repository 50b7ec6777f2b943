#include "ipc/collective/culprit.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "ipc/group.h"

namespace nvllm::ipc {
namespace {

// All ranks of a group, in this process.
struct Ranks {
  explicit Ranks(int size, Nanoseconds step_timeout = std::chrono::seconds(60))
      : group(Group::create({.size = size, .step_timeout = step_timeout})) {
    for (int rank = 0; rank < size; ++rank) {
      members.push_back(group.join(rank));
      members.back().beat();
      members.back().set_phase(Phase::ready);
    }
  }
  Member& operator[](int rank) { return members[static_cast<std::size_t>(rank)]; }
  void collectives(int rank, int count) {
    for (int i = 0; i < count; ++i) {
      const Member::ActivityScope doing((*this)[rank], Member::Activity::collective, "all_reduce");
    }
  }
  void begin_call(std::uint64_t number, std::vector<int> but = {}) {
    for (Member& member : members) {
      if (std::ranges::find(but, member.rank()) == but.end()) member.set_step(number);
    }
  }

  Group group;
  std::vector<Member> members;
};

TEST_CASE("the suspect is named where no record says more") {
  Ranks ranks(4);
  CHECK(find_culprit(ranks.group, 3, 2) == 2);
  CHECK(find_culprit(ranks.group, 3, 1, 2) == 1);
  CHECK(find_culprit(ranks.group, 0) == 1);
  CHECK(find_culprit(ranks.group, 2) == 0);
}

TEST_CASE("a rank of another stage that has ended is named, whoever is suspected") {
  Ranks ranks(4);
  ranks[1].set_phase(Phase::ended);
  CHECK(find_culprit(ranks.group, 3, 2, 2) == 1);
}

TEST_CASE("a stage that gives no sign of life is named, whoever is suspected") {
  Ranks ranks(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(2200));
  for (const int rank : {0, 2}) ranks[rank].beat();
  CHECK(find_culprit(ranks.group, 0, 2, 3) == 1);
}

TEST_CASE("a stage that has started fewer steps than who waits is named") {
  Ranks ranks(4);
  ranks.begin_call(7);
  ranks.begin_call(8, {1});
  CHECK(find_culprit(ranks.group, 3, 2, 4) == 1);
  CHECK(find_culprit(ranks.group, 0, 3, 4) == 1);
}

TEST_CASE("a stage whose main thread has long been in a call is named") {
  Ranks ranks(3, std::chrono::milliseconds(200));
  ranks.begin_call(7);
  const Member::ActivityScope doing(ranks[1], Member::Activity::call, "call step");
  CHECK(find_culprit(ranks.group, 0, 2, 3) == 2);  // it has only started
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  CHECK(find_culprit(ranks.group, 0, 2, 3) == 1);
}

TEST_CASE("collectives are compared within a stage, since stages have different numbers of them") {
  Ranks ranks(4);
  for (const int rank : {0, 1}) ranks.collectives(rank, 3);
  for (const int rank : {2, 3}) ranks.collectives(rank, 9);
  CHECK(find_culprit(ranks.group, 3, 2, 2) == 2);
  CHECK(find_culprit(ranks.group, 2, 3, 2) == 3);
  ranks.collectives(3, 1);
  CHECK(find_culprit(ranks.group, 3, 1, 2) == 2);
  CHECK(find_culprit(ranks.group, 2, 1, 2) == 1);
  CHECK(find_culprit(ranks.group, 2, 1) == 0);  // one stage: compared among all
}

}  // namespace
}  // namespace nvllm::ipc
