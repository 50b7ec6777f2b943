#include "ipc/ring.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <string>

#include "testing/error_of.h"
#include "testing/ranks.h"

namespace nvllm::ipc {
namespace {

using testing::error_of;
using testing::RankProcesses;
using testing::run_ranks;

// A ring in rank 0's staging memory, which is the same in every process.
BroadcastRing test_ring(const Member& me, RingShape shape) {
  BroadcastRing ring{"test", me.staging(0), shape, 0, {}};
  for (int rank = 1; rank < me.size(); ++rank) ring.readers.push_back(rank);
  return ring;
}

std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) {
    seed = seed * 1664525U + 1013904223U;
    b = static_cast<std::byte>(seed >> 24);
  }
  return data;
}

}  // namespace

TEST_CASE("messages of all sizes arrive whole and in order") {
  constexpr RingShape kShape{4, 256};
  constexpr std::size_t kRing = 4 * 256;
  const std::vector<std::size_t> sizes = {0,   1,   255,       256,   257,       511,
                                          512, 513, kRing - 1, kRing, kRing + 1, 10 * kRing + 3};
  run_ranks(4, [&](Member& me) {
    const BroadcastRing ring = test_ring(me, kShape);
    if (me.rank() == 0) {
      RingWriter writer(me, ring);
      for (std::uint32_t round = 0; round < 20; ++round) {
        for (const std::size_t size : sizes) writer.send(pattern(size, round));
      }
    } else {
      RingReader reader(me, ring);
      for (std::uint32_t round = 0; round < 20; ++round) {
        for (const std::size_t size : sizes) {
          const Bytes message = reader.receive();
          const auto expected = pattern(size, round);
          REQUIRE(message.size() == size);
          REQUIRE(std::equal(message.begin(), message.end(), expected.begin()));
        }
      }
    }
  });
}

TEST_CASE("a scattered message arrives as one") {
  run_ranks(2, [](Member& me) {
    const BroadcastRing ring = test_ring(me, {4, 64});
    const auto whole = pattern(200, 7);
    if (me.rank() == 0) {
      RingWriter writer(me, ring);
      const Bytes all(whole);
      const std::array<Bytes, 5> parts = {all.first(1), all.subspan(1, 99), Bytes(),
                                          all.subspan(100, 100), Bytes()};
      for (int i = 0; i < 100; ++i) writer.send(parts);
    } else {
      RingReader reader(me, ring);
      for (int i = 0; i < 100; ++i) {
        const Bytes message = reader.receive();
        REQUIRE(std::equal(message.begin(), message.end(), whole.begin(), whole.end()));
      }
    }
  });
}

TEST_CASE("a message that fits a slot is read where it lies") {
  const Group group = Group::create({.size = 2});
  Member zero = group.join(0);
  Member one = group.join(1);
  const BroadcastRing ring = test_ring(zero, {4, 256});
  RingWriter writer(zero, ring);
  RingReader reader(one, ring);
  const auto lies_in_ring = [&](Bytes message) {
    return message.data() >= ring.memory.data() &&
           message.data() < ring.memory.data() + ring.memory.size();
  };
  writer.send(pattern(256, 1));
  writer.send(pattern(257, 2));
  CHECK(lies_in_ring(reader.receive()));
  CHECK(!lies_in_ring(reader.receive()));
  CHECK(!reader.try_receive().has_value());
  CHECK(!reader.receive_for(std::chrono::milliseconds(1)).has_value());
}

TEST_CASE("the writer never gets further ahead than the slowest reader allows") {
  constexpr RingShape kShape{8, 64};
  constexpr std::uint64_t kMessages = 3000;
  run_ranks(3, [&](Member& me) {
    const BroadcastRing ring = test_ring(me, kShape);
    std::atomic<std::uint64_t>& started = me.flags(me.rank())[0].value;
    if (me.rank() == 0) {
      RingWriter writer(me, ring);
      for (std::uint64_t n = 0; n < kMessages; ++n) {
        writer.send(std::as_bytes(std::span(&n, 1)));
        // Message n is in the slot of message n - 8, which the reader releases by receiving the
        // next one.
        for (const int reader : {1, 2})
          CHECK(me.flags(reader)[0].value.load() + kShape.slots >= n + 1);
      }
      return;
    }
    RingReader reader(me, ring);
    for (std::uint64_t n = 0; n < kMessages; ++n) {
      started.store(n);
      const Bytes message = reader.receive();
      std::uint64_t number = 0;
      std::memcpy(&number, message.data(), sizeof(number));
      REQUIRE(number == n);
      if (me.rank() == 2 && n % 500 == 0) usleep(5000);
    }
  });
}

// In both tests each of 20 rounds pauses for 20 ms. A sleep ends after 200 ms by itself: without
// the bells, each round would take that long.
TEST_CASE("a sleeping reader is woken by the message") {
  run_ranks(2, [](Member& me) {
    const BroadcastRing ring = test_ring(me, {4, 64});
    std::atomic<int>& received = *reinterpret_cast<std::atomic<int>*>(me.staging(1).data());
    const std::int64_t start = now_ns();
    if (me.rank() == 0) {
      RingWriter writer(me, ring);
      for (int round = 0; round < 20; ++round) {
        while (received.load() < round) usleep(100);
        usleep(20'000);
        writer.send(pattern(8, 0));
      }
    } else {
      RingReader reader(me, ring);
      for (int round = 0; round < 20; ++round) {
        reader.receive(Nanoseconds(0));
        received.store(round + 1);
      }
    }
    CHECK(seconds_since(start) < 2.5);
  });
}

TEST_CASE("a sleeping writer is woken by the room") {
  run_ranks(2, [](Member& me) {
    const BroadcastRing ring = test_ring(me, {1, 64});
    const std::int64_t start = now_ns();
    if (me.rank() == 0) {
      RingWriter writer(me, ring);
      for (int round = 0; round < 20; ++round) writer.send(pattern(8, 0));
    } else {
      RingReader reader(me, ring);
      for (int round = 0; round < 20; ++round) {
        reader.receive(Nanoseconds(0));
        usleep(20'000);
        reader.release();
      }
    }
    CHECK(seconds_since(start) < 2.5);
  });
}

TEST_CASE("a stopped reader holds the writer up until the deadline, which names it") {
  RankProcesses ranks(
      3,
      [](Member& me) {
        const BroadcastRing ring = test_ring(me, {4, 64});
        if (me.rank() != 0) {
          RingReader reader(me, ring);
          if (me.rank() == 2) raise(SIGSTOP);
          for (int n = 0; n < 4; ++n) reader.receive_idle();
          return;
        }
        RingWriter writer(me, ring);
        try {
          while (true) writer.send(pattern(10, 0));
        } catch (const PeerTimeout& error) {
          CHECK(error.peer() == 2);
          CHECK(std::string(error.what()).find("for room in ring 'test' from rank 2 (pid ") !=
                std::string::npos);
        }
        CHECK(me.group().snapshot(0).waits_for == 2);
        kill(me.group().snapshot(2).pid, SIGKILL);
      },
      {.step_timeout = std::chrono::milliseconds(300)});
  const auto ends = ranks.wait_all();
  CHECK_MESSAGE(ends[0].clean(), ends[0].describe());
  CHECK_MESSAGE(ends[1].clean(), ends[1].describe());
  CHECK(ends[2].status == SIGKILL);
}

TEST_CASE("a reader whose writer is silent names it after the deadline") {
  const Group group = Group::create({.size = 2, .step_timeout = std::chrono::milliseconds(50)});
  Member zero = group.join(0);
  Member one = group.join(1);
  RingReader reader(one, test_ring(zero, {4, 64}));
  CHECK(error_of([&] {
          reader.receive();
        }).find("for a message in ring 'test' from rank 0 (pid ") != std::string::npos);
}

TEST_CASE("a message in whose middle a reader timed out is received whole by the next call") {
  run_ranks(3,
            [](Member& me) {
              const BroadcastRing ring = test_ring(me, {4, 64});
              const auto expected = pattern(1000, 5);
              std::atomic<std::uint64_t>& timed_out = me.flags(1)[0].value;
              if (me.rank() == 0) return RingWriter(me, ring).send_until_stop(expected);
              // The writer cannot go on while one reader reads nothing.
              while (me.rank() == 2 && timed_out.load() == 0) usleep(1000);
              RingReader reader(me, ring);
              Bytes message;
              while (message.empty()) {
                try {
                  message = reader.receive();
                } catch (const PeerTimeout&) {
                  timed_out.fetch_add(1);
                }
              }
              CHECK(std::ranges::equal(message, expected));
            },
            {.step_timeout = std::chrono::milliseconds(200)});
}

TEST_CASE("readers of a writer that was killed in the middle of a message are freed by abort") {
  RankProcesses ranks(3, [](Member& me) {
    const BroadcastRing ring = test_ring(me, {4, 64});
    if (me.rank() == 0) {
      RingWriter writer(me, ring);
      writer.send(pattern(100'000, 0));  // far more than the ring holds; rank 1 stops reading
      return;
    }
    RingReader reader(me, ring);
    try {
      if (me.rank() == 1) {  // blocks the writer in the middle of a message
        me.wait_idle(
            me.main_bell(1), [] { return false; }, std::chrono::hours(1));
      } else {
        reader.receive(Nanoseconds(0));
      }
      FAIL("no abort");
    } catch (const GroupAborted& error) {
      CHECK(seconds_since(std::stoll(error.what())) < 1.0);
    }
  });
  const std::int64_t start = now_ns();
  while (ranks.group().snapshot(0).waits_for != 1) {
    REQUIRE(seconds_since(start) < 60);
    usleep(1000);
  }
  ranks.signal(0, SIGKILL);
  ranks.group().abort(str(now_ns()));
  const auto ends = ranks.wait_all();
  CHECK(ends[0].status == SIGKILL);
  CHECK_MESSAGE(ends[1].clean(), ends[1].describe());
  CHECK_MESSAGE(ends[2].clean(), ends[2].describe());
}

// A ring whose last message was cut short.
struct BrokenRing {
  Group group = Group::create({.size = 2, .step_timeout = std::chrono::milliseconds(20)});
  Member zero = group.join(0);
  Member one = group.join(1);
  RingWriter writer{zero, test_ring(zero, {4, 64})};

  BrokenRing() { CHECK_THROWS_AS(writer.send(pattern(1000, 0)), PeerTimeout); }
};
constexpr const char* kBroken = "ring 'test' is broken: an earlier message ended in the middle";

TEST_CASE_FIXTURE(BrokenRing, "a ring whose last message ended in the middle takes no other") {
  CHECK(error_of([&] { writer.send(pattern(1, 0)); }) == kBroken);
}

TEST_CASE_FIXTURE(
    BrokenRing,
    "what is to be sent until the stop is dropped only where nobody can read it any more") {
  // Without a stop the message is lost, which must be reported.
  CHECK(error_of([&] { writer.send_until_stop(pattern(1, 0)); }) == kBroken);
  group.request_stop();
  writer.send_until_stop(pattern(1, 0));
}

TEST_CASE("a stop keeps no message back from a ring that has room") {
  const Group group = Group::create({.size = 2});
  Member zero = group.join(0);
  Member one = group.join(1);
  const BroadcastRing ring = test_ring(zero, {4, 64});
  RingWriter writer(zero, ring);
  RingReader reader(one, ring);
  group.request_stop();
  writer.send_until_stop(pattern(100, 1));
  CHECK(reader.try_receive().has_value());
}

TEST_CASE("torn, foreign and skipped fragments are detected") {
  using Spoil = void (*)(RingSlot&);
  const std::array<Spoil, 6> spoils = {
      [](RingSlot& slot) { slot.sequence.store(5); },  // overwritten by the next round
      [](RingSlot& slot) { slot.ring ^= 1; },
      [](RingSlot& slot) { slot.bytes += 1; },
      [](RingSlot& slot) { slot.offset = 64; },
      [](RingSlot& slot) { slot.message_bytes = 1; },
      [](RingSlot& slot) { slot.message_bytes = ~std::uint64_t{0}; },
  };
  for (const Spoil spoil : spoils) {
    const Group group = Group::create({.size = 2});
    Member zero = group.join(0);
    Member one = group.join(1);
    const BroadcastRing ring = test_ring(zero, {4, 64});
    RingWriter writer(zero, ring);
    RingReader reader(one, ring);
    writer.send(pattern(100, 1));
    spoil(reinterpret_cast<RingMemory*>(ring.memory.data())->slot(ring.shape, 0));
    CHECK(error_of([&] { reader.receive(); }).find("ring 'test' is corrupt at fragment 0") !=
          std::string::npos);
  }
}

TEST_CASE("a message too large for any ring is refused before it is sent") {
  const Group group = Group::create({.size = 2});
  Member zero = group.join(0);
  RingWriter writer(zero, test_ring(zero, {4, 64}));
  const std::byte byte{};
  CHECK(error_of([&] { writer.send(Bytes(&byte, (std::size_t{1} << 30) + 1)); }) ==
        "a message of 1.00 GiB is too large for ring 'test'; at most 1 GiB");
}

}  // namespace nvllm::ipc
