// The shm communicator between processes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "base/clock.h"
#include "ipc/collective/testing/suite.h"
#include "testing/ranks.h"

namespace nvllm::ipc {
namespace {

using testing::RankEnd;
using testing::RankProcesses;
using testing::run_ranks;

const TestSetup kShm{DeviceKind::cpu, "shm", true};

// Runs the test on 1 to 8 ranks.
template <typename Function>
void on_any_number_of_ranks(Function test, const GroupOptions& options = {}) {
  const std::uint64_t seed = fresh_seed();
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    run_ranks(
        ranks,
        [&](Member& me) {
          Rig rig(me, kShm);
          test(rig, seed);
        },
        options);
  }
}

// Waits, with a time limit, for something that another process does.
template <typename Condition>
bool comes_true(Condition condition) {
  const std::int64_t start = now_ns();
  while (!condition()) {
    if (seconds_since(start) > 30) return false;
    usleep(1000);
  }
  return true;
}

}  // namespace

TEST_CASE("shm: every operation, type, size and alignment gives the plain result") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t seed) {
    suite::single_calls(rig, seed, 300, {.elements = 3000});
  });
}

TEST_CASE("shm: overlapped sums are done by their second call") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t seed) {
    CHECK(!rig.comm->open_overlap(8, 64, DType::f32));
    suite::overlapped_rows(rig, seed, 2000, 2);
  });
}

TEST_CASE("shm: tensors larger than the staging memory") {
  GroupOptions options;
  options.staging_bytes = 16 << 10;
  on_any_number_of_ranks(
      [](Rig& rig, std::uint64_t seed) {
        suite::single_calls(rig, seed, 30, {.elements = 60'000});
      },
      options);
}

TEST_CASE("shm: large sums go through the pipeline") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t seed) {
    suite::single_calls(rig, seed, 6, {.elements = 400'000, .only_reduce = true});
  });
}

TEST_CASE("shm: every way of handing data over gives the plain result") {
  // Enough calls of few sizes that each size tries all methods, while others use their choice.
  const std::uint64_t seed = fresh_seed();
  GroupOptions options;
  options.staging_bytes = 128 << 10;
  for (int ranks : {2, 3}) {
    run_ranks(
        ranks,
        [&](Member& me) {
          Rig rig(me, kShm);
          suite::single_calls(rig, seed, 300, {.elements = 40'000, .only_reduce = true});
        },
        options);
  }
}

TEST_CASE("shm: calls back to back, with ranks that come late") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t seed) {
    suite::back_to_back(rig, seed, 5, 60, {.elements = 20'000});
  });
}

TEST_CASE("shm: a captured graph can be replayed among other calls") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t seed) {
    suite::in_a_graph(rig, seed, 5, 20, {.elements = 20'000});
  });
}

TEST_CASE("shm: two streams in turn") {
  on_any_number_of_ranks(
      [](Rig& rig, std::uint64_t seed) { suite::on_two_streams(rig, seed, {.elements = 10'000}); });
}

TEST_CASE("shm: the same bits on all ranks and in every run") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t seed) {
    suite::same_bits(rig, seed, 1001);
    suite::same_bits(rig, seed, 100'003);
  });
}

TEST_CASE("shm: the chunking does not change a bit") {
  // The same input with staging memories of different sizes.
  const std::uint64_t seed = fresh_seed();
  for (std::size_t staging : {std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{2} << 20}) {
    GroupOptions options;
    options.staging_bytes = staging;
    run_ranks(
        3,
        [&](Member& me) {
          Rig rig(me, kShm);
          suite::single_calls(rig, seed, 3, {.elements = 50'000, .only_reduce = true});
        },
        options);
  }
}

TEST_CASE("shm: wrong arguments are refused") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t) { suite::refuses_wrong_arguments(rig); });
}

TEST_CASE("shm: an unknown implementation is refused") {
  run_ranks(1, [](Member& me) {
    CHECK_THROWS_WITH_AS(Rig(me, {DeviceKind::cpu, "nccl", true}),
                         doctest::Contains("use auto or shm"), Error);
  });
}

TEST_CASE("shm: staging memory that is too small is refused") {
  GroupOptions options;
  options.staging_bytes = 1024;
  run_ranks(
      4,
      [](Member& me) {
        CHECK_THROWS_WITH_AS(Rig(me, kShm), doctest::Contains("staging_bytes"), Error);
      },
      options);
}

TEST_CASE("shm: abort() ends the collectives of all ranks with its reason") {
  on_any_number_of_ranks([](Rig& rig, std::uint64_t) { suite::ends_when_aborted(rig); });
}

TEST_CASE("shm: ranks that call different things are told so") {
  RankProcesses ranks(2, [](Member& me) {
    Rig rig(me, kShm);
    std::vector<float> data(100);
    const TensorView view(data.data(), DType::f32, {50 + me.rank()});
    rig.comm->all_reduce(view, *rig.stream);
    rig.comm->wait(*rig.stream);
  });
  for (const RankEnd& end : ranks.wait_all()) {
    INFO(end.describe());
    CHECK(end.report.find("another collective or with another shape") != std::string::npos);
  }
}

TEST_CASE("shm: a killed rank ends the others' collective once the group is aborted") {
  RankProcesses ranks(3, [](Member& me) {
    Rig rig(me, kShm);
    std::vector<float> data(200'000);
    const TensorView view(data.data(), DType::f32, {200'000});
    for (int call = 0;; ++call) {
      if (me.rank() == 1 && call == 20) raise(SIGKILL);
      rig.comm->all_reduce(view, *rig.stream);
      rig.comm->wait(*rig.stream);
    }
  });
  const auto start = now_ns();
  const auto ends = ranks.wait_all(true);
  CHECK(seconds_since(start) < 20);  // much less than the deadline of 60
  CHECK(WTERMSIG(ends[1].status) == SIGKILL);
  for (int survivor : {0, 2}) {
    INFO(ends[survivor].describe());
    CHECK(ends[survivor].report.find("rank 1") != std::string::npos);
    CHECK(ends[survivor].report.find("SIGKILL") != std::string::npos);
  }
}

TEST_CASE("shm: a stopped rank is named when the deadline has passed") {
  GroupOptions options;
  options.step_timeout = std::chrono::milliseconds(1500);
  for (std::int64_t elements : {1000, 200'000}) {
    RankProcesses ranks(
        4,
        [elements](Member& me) {
          Rig rig(me, kShm);
          std::vector<float> data(static_cast<std::size_t>(elements));
          const TensorView view(data.data(), DType::f32, {elements});
          for (int call = 0;; ++call) {
            if (me.rank() == 2 && call == 10) raise(SIGSTOP);
            rig.comm->all_reduce(view, *rig.stream);
            rig.comm->wait(*rig.stream);
          }
        },
        options);
    CHECK(comes_true([&] { return ranks.group().aborted(); }));
    ranks.signal(2, SIGKILL);
    const auto ends = ranks.wait_all();
    for (int survivor : {0, 1, 3}) {
      INFO(ends[survivor].describe());
      CHECK(ends[survivor].report.find("all_reduce") != std::string::npos);
      CHECK(ends[survivor].report.find("with rank 2 (pid") != std::string::npos);
    }
  }
}

}  // namespace nvllm::ipc
