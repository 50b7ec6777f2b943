#include "ipc/group.h"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>

#include "base/clock.h"
#include "testing/error_of.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::ipc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::error_of;
using testing::has;
using testing::RankProcesses;
using testing::run_ranks;

constexpr Nanoseconds kForEver = std::chrono::hours(1);

// A counter that rank r publishes, for which others wait on their collective bells.
std::atomic<std::uint64_t>& flag(const Member& me, int rank, std::size_t index = 0) {
  return me.flags(rank)[index].value;
}

void raise_flag(Member& me, std::uint64_t value) {
  flag(me, me.rank()).store(value, std::memory_order_seq_cst);
  for (int rank = 0; rank < me.size(); ++rank) me.collective_bell(rank).ring();
}

void await_flag(Member& me, int peer, std::uint64_t value, Nanoseconds spin = Member::kSpin) {
  me.wait(
      me.collective_bell(me.rank()),
      [&] { return flag(me, peer).load(std::memory_order_seq_cst) >= value; }, peer, "its flag",
      spin);
}

// For the parent: waits until something has happened in a child.
template <typename Ready>
void poll_until(Ready ready) {
  const std::int64_t start = now_ns();
  while (!ready()) {
    REQUIRE(seconds_since(start) < 60);
    usleep(1000);
  }
}

}  // namespace

TEST_CASE("a group of no ranks, of too many, or without patience is refused with the fix") {
  CHECK(error_of([] { Group::create({.size = 0}); }) ==
        "a group of 0 ranks is not possible; pass --tp 1 to 8");
  CHECK(error_of([] { Group::create({.size = -3}); }) ==
        "a group of -3 ranks is not possible; pass --tp 1 to 8");
  CHECK(error_of([] { Group::create({.size = 9}); }) ==
        "a group of 9 ranks is not possible; pass --tp 1 to 8");
  CHECK(has(error_of([] { Group::create({.step_timeout = seconds(0)}); }), "--step-timeout"));
}

TEST_CASE("a place is taken once, and only if it exists") {
  const Group group = Group::create({.size = 2});
  const Member one = group.join(1);
  CHECK(has(error_of([&] { group.join(1); }), "rank 1 has joined already, as pid"));
  CHECK(error_of([&] { group.join(2); }) == "rank 2 cannot join a group of 2 ranks");
  CHECK(error_of([&] { group.join(-2); }) == "rank -2 cannot join a group of 2 ranks");
}

TEST_CASE("nothing is in /dev/shm right after Group::create") {
  const Group group = Group::create({.size = 8});
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("nothing is in /dev/shm after SIGKILL of a whole group in mid-run") {
  RankProcesses ranks(4, [](Member& me) {
    while (true) me.exchange({}, "exchange");
  });
  poll_until([&] { return ranks.group().snapshot(3).phase == Phase::ready; });
  usleep(20'000);
  for (int rank = 0; rank < 4; ++rank) ranks.signal(rank, SIGKILL);
  for (const auto& end : ranks.wait_all()) CHECK(end.status == SIGKILL);
  CHECK(testing::lingering_shm_names().empty());
}

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

TEST_CASE("two groups at once do not disturb each other") {
  const auto body = [](std::uint64_t number) {
    return [number](Member& me) {
      for (int round = 0; round < 100; ++round) {
        const auto all = me.exchange(std::as_bytes(std::span(&number, 1)), "exchange");
        for (const auto& blob : all) CHECK(std::memcmp(blob.data(), &number, sizeof(number)) == 0);
      }
    };
  };
  RankProcesses one(2, body(1));
  RankProcesses two(2, body(2));
  for (const auto& end : one.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
  for (const auto& end : two.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
}

TEST_CASE("staging memory is the same in every process and starts as zeros") {
  run_ranks(3, [](Member& me) {
    const auto mine = me.staging(me.rank());
    REQUIRE(mine.size() == std::size_t{2} << 20);
    CHECK(mine[0] == std::byte{0});
    mine[mine.size() - 1] = static_cast<std::byte>(me.rank() + 1);
    raise_flag(me, 1);
    for (int rank = 0; rank < me.size(); ++rank) {
      await_flag(me, rank, 1);
      const auto theirs = me.staging(rank);
      CHECK(theirs[theirs.size() - 1] == static_cast<std::byte>(rank + 1));
    }
  });
}

TEST_CASE("a peer that does not come is named with its pid, step and activity") {
  run_ranks(2,
            [](Member& me) {
              if (me.rank() == 1) {
                me.set_step(12);
                const Member::ActivityScope doing(me, Member::Activity::collective,
                                                  "all_reduce 4096 float32");
                raise_flag(me, 1);
                me.wait_idle(me.collective_bell(1), [&] { return flag(me, 0).load() != 0; });
                return;
              }
              await_flag(me, 1, 1);
              const std::string pid = str(me.group().snapshot(1).pid);
              try {
                await_flag(me, 1, 2);
                FAIL("no timeout");
              } catch (const PeerTimeout& error) {
                const std::string text = error.what();
                CHECK(error.peer() == 1);
                CHECK(has(text, "waited "));
                CHECK(has(text, str("for its flag from rank 1 (pid ", pid,
                                    "), step 12, in all_reduce 4096 float32 #1 for ")));
              }
              CHECK(me.group().snapshot(0).waits_for == 1);
              raise_flag(me, 1);
            },
            {.step_timeout = milliseconds(700)});
}

TEST_CASE("a peer that never joined is named too") {
  const Group group = Group::create({.size = 2, .step_timeout = milliseconds(50)});
  Member me = group.join(0);
  CHECK(has(error_of([&] { me.exchange({}, "its greeting"); }),
            "for its greeting from rank 1 (has not joined)"));
}

TEST_CASE("time in which the waiting process itself was stopped does not count") {
  RankProcesses ranks(2,
                      [](Member& me) {
                        if (me.rank() == 1) {
                          raise_flag(me, 1);
                          await_flag(me, 0, 1);
                        } else {
                          await_flag(me, 1, 1);
                          me.wait_idle(me.collective_bell(0), [&] {
                            return flag(me, 0, 1).load(std::memory_order_seq_cst) != 0;
                          });
                          raise_flag(me, 1);
                        }
                      },
                      {.step_timeout = milliseconds(1500)});
  Member launcher = ranks.group().join(kLauncher);
  poll_until([&] { return ranks.group().snapshot(1).waits_for == 0; });
  ranks.signal(1, SIGSTOP);
  usleep(2'500'000);  // far longer than the step timeout
  ranks.signal(1, SIGCONT);
  usleep(50'000);
  flag(launcher, 0, 1).store(1, std::memory_order_seq_cst);
  launcher.collective_bell(0).ring();
  for (const auto& end : ranks.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
}

TEST_CASE("a wait's clock moves its deadline by gaps, and only by those") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  WaitClock clock(seconds(2), 0);
  clock.look(kSecond / 2);
  clock.look(kSecond);
  CHECK(!clock.expired());
  clock.look(11 * kSecond);
  CHECK(!clock.expired());
  clock.look(11 * kSecond + kSecond / 2);
  CHECK(!clock.expired());
  clock.look(12 * kSecond);
  CHECK(clock.expired());
  WaitClock endless(Nanoseconds::max(), kSecond);
  endless.look(std::int64_t{1} << 60);
  CHECK(!endless.expired());
}

TEST_CASE("abort wakes everybody within a second, spinning or asleep, with the first reason") {
  RankProcesses ranks(3, [](Member& me) {
    const Nanoseconds spin = me.rank() == 0 ? kForEver : Nanoseconds(0);
    try {
      if (me.rank() == 2) {
        me.wait_idle(
            me.main_bell(2), [] { return false; }, spin);
      } else {
        await_flag(me, 2, 1, spin);
      }
      FAIL("no abort");
    } catch (const GroupAborted& error) {
      CHECK(seconds_since(std::stoll(error.what())) < 1.0);
    }
    CHECK_THROWS_AS(me.exchange({}, "exchange"), GroupAborted);  // and from now on
  });
  poll_until([&] {
    return ranks.group().snapshot(0).waits_for == 2 && ranks.group().snapshot(1).waits_for == 2 &&
           ranks.group().snapshot(2).phase == Phase::ready;
  });
  usleep(100'000);
  ranks.group().abort(str(now_ns()));
  ranks.group().abort("another reason");
  for (const auto& end : ranks.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
}

TEST_CASE("of many simultaneous aborts one reason wins, whole") {
  run_ranks(4, [](Member& me) {
    me.group().abort(std::string(400, static_cast<char>('a' + me.rank())));
    const std::string reason = me.group().abort_reason();
    CHECK(reason.size() == 400);
    CHECK(reason == std::string(400, reason[0]));
  });
}

TEST_CASE("an inner activity gives way to the outer one again") {
  const Group group = Group::create({.size = 1});
  Member me = group.join(0);
  const auto text = [&] { return group.snapshot(0).call.text; };
  {
    const Member::ActivityScope outer(me, Member::Activity::call, "request selftest");
    {
      const Member::ActivityScope inner(me, Member::Activity::call, "call echo");
      CHECK(text() == "call echo");
      CHECK(group.snapshot(0).call.number == 2);
    }
    CHECK(text() == "request selftest");
    CHECK(group.snapshot(0).call.number == 1);
  }
  CHECK(text().empty());
  const Member::ActivityScope again(me, Member::Activity::call, std::string(1000, 'x'));
  CHECK(text() == std::string(112, 'x'));
}

TEST_CASE("records are whole while they change and after the writer's death") {
  const auto check = [](const ActivitySnapshot& activity) {
    if (activity.text.empty()) return;
    const char letter = static_cast<char>('a' + activity.number % 26);
    CHECK(activity.text == std::string(1 + activity.number % 100, letter));
  };
  RankProcesses ranks(1, [](Member& me) {
    for (std::uint64_t number = 1;; ++number) {
      me.set_step(number);
      const Member::ActivityScope doing(
          me, Member::Activity::collective,
          std::string(1 + number % 100, static_cast<char>('a' + number % 26)));
    }
  });
  poll_until([&] { return ranks.group().snapshot(0).step > 1000; });
  for (int i = 0; i < 20'000; ++i) check(ranks.group().snapshot(0).collective);
  ranks.signal(0, SIGKILL);
  ranks.wait_all();
  check(ranks.group().snapshot(0).collective);
  CHECK(ranks.group().snapshot(0).step > 1000);
}

TEST_CASE("a reader never sees a torn text, also by ThreadSanitizer's judgement") {
  const auto cell = std::make_unique<TextCell<64>>();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(); ++i) {
      cell->write(i, static_cast<std::int64_t>(i),
                  std::string(i % 64, static_cast<char>('a' + i % 26)));
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    const auto value = cell->read();
    CHECK(value.since_ns == static_cast<std::int64_t>(value.number));
    CHECK(value.view() ==
          std::string(value.number % 64, static_cast<char>('a' + value.number % 26)));
  }
  stop.store(true);
  writer.join();
}

TEST_CASE("the last error and the end of a rank can be read by others") {
  RankProcesses ranks(1, [](Member& me) { me.set_error_text("out of memory"); });
  ranks.wait_all();
  const RankSnapshot snapshot = ranks.group().snapshot(0);
  CHECK(snapshot.phase == Phase::ended);
  CHECK(snapshot.error_text == "out of memory");
  CHECK(has(snapshot.describe(), "step 0, ended, last error: out of memory"));
}

TEST_CASE("heartbeats go on while the main thread is busy, and stop with the process") {
  CHECK(Heartbeat::interval(seconds(60)) == milliseconds(500));
  CHECK(Heartbeat::interval(milliseconds(400)) == milliseconds(50));
  CHECK(Heartbeat::interval(milliseconds(8)) == milliseconds(20));
  RankProcesses ranks(1,
                      [](Member& me) {
                        const Heartbeat heartbeat(me);
                        pause();
                      },
                      {.step_timeout = milliseconds(400)});
  poll_until([&] { return ranks.group().snapshot(0).phase == Phase::ready; });
  for (int i = 0; i < 3; ++i) {
    const std::int64_t last = ranks.group().snapshot(0).heartbeat_ns;
    poll_until([&] { return ranks.group().snapshot(0).heartbeat_ns > last; });
  }
  ranks.signal(0, SIGSTOP);
  usleep(100'000);
  const std::int64_t last = ranks.group().snapshot(0).heartbeat_ns;
  usleep(300'000);
  CHECK(ranks.group().snapshot(0).heartbeat_ns == last);
  ranks.signal(0, SIGKILL);
  ranks.wait_all();
}

// Sets this thread's time slice unless `wanted` is 0, and returns the one that it has; 0 on a
// kernel that has one for all threads. It is in bytes 24 to 31 of the kernel's struct sched_attr.
std::uint64_t time_slice_ns(std::uint64_t wanted = 0) {
  std::array<char, 48> attributes{};
  const auto read = [&] {
    REQUIRE(::syscall(SYS_sched_getattr, 0, attributes.data(), attributes.size(), 0) == 0);
  };
  read();
  if (wanted != 0) {
    std::memcpy(attributes.data() + 24, &wanted, sizeof wanted);
    REQUIRE(::syscall(SYS_sched_setattr, 0, attributes.data(), 0) == 0);
    read();
  }
  std::uint64_t slice = 0;
  std::memcpy(&slice, attributes.data() + 24, sizeof slice);
  return slice;
}

TEST_CASE("a member's thread, and those that it starts, are run soon after they are woken") {
  static constexpr std::uint64_t kLong = 2'000'000;
  if (time_slice_ns(kLong) != kLong) SKIP_TEST("this kernel has one time slice for all threads");
  run_ranks(1, [](Member&) {
    CHECK(time_slice_ns() < kLong);
    std::thread([] { CHECK(time_slice_ns() < kLong); }).join();
  });
}

TEST_CASE("an idle group takes next to no processor time") {
  RankProcesses ranks(2, [](Member& me) {
    const Heartbeat heartbeat(me);
    try {
      me.wait_idle(me.main_bell(me.rank()), [] { return false; });
    } catch (const GroupAborted&) {
    }
  });
  poll_until([&] { return ranks.group().snapshot(1).phase == Phase::ready; });
  const auto cpu_ns = [&] {
    std::int64_t sum = 0;
    for (int rank = 0; rank < 2; ++rank) {
      clockid_t clock{};
      timespec used{};
      REQUIRE(clock_getcpuclockid(ranks.pid(rank), &clock) == 0);
      REQUIRE(clock_gettime(clock, &used) == 0);
      sum += used.tv_sec * 1'000'000'000 + used.tv_nsec;
    }
    return sum;
  };
  usleep(300'000);
  const std::int64_t before = cpu_ns();
  usleep(1'000'000);
  CHECK(cpu_ns() - before < 10'000'000);  // 1% of one core
  ranks.group().abort("done");
  for (const auto& end : ranks.wait_all()) CHECK_MESSAGE(end.clean(), end.describe());
}

}  // namespace nvllm::ipc
