// Millions of messages and wake-ups with random pauses on both sides.
//
// NVLLM_STRESS=20 in the environment multiplies the work by 20 (bazel test
// --test_env=NVLLM_STRESS=20 --test_timeout=3600 //ipc:stress_test).
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ipc/ring.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::ipc {
namespace {

using std::chrono::microseconds;

constexpr std::uint64_t kSlowdown = testing::kSanitized ? 20 : 1;

std::uint64_t scaled(std::uint64_t count) {
  const char* factor = std::getenv("NVLLM_STRESS");
  return count * (factor != nullptr ? std::strtoull(factor, nullptr, 10) : 1) / kSlowdown;
}

// xorshift64*; each process has its own.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1d;
  }
  bool one_in(std::uint64_t n) { return next() % n == 0; }

 private:
  std::uint64_t state_;
};

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x7fb5d329728ea185;
  return value ^ (value >> 29);
}

// Message number n: 1 to 12 words that depend on n and their index, n first. Some exceed a slot.
struct Message {
  std::array<std::uint64_t, 64> words;
  std::size_t size = 0;

  explicit Message(std::uint64_t n) {
    size = n % 997 == 0 ? 64 : 1 + mix(n) % 12;
    words[0] = n;
    for (std::size_t i = 1; i < size; ++i) words[i] = mix(n * 64 + i);
  }
  Bytes bytes() const { return std::as_bytes(std::span(words).first(size)); }
};

struct Load {
  std::uint64_t messages;
  std::uint64_t pause_one_in;  // messages; for the writer and each reader on its own
  Nanoseconds spin;
  RingShape shape;
};

BroadcastRing stress_ring(const Member& me, const RingShape& shape) {
  BroadcastRing ring{"stress", me.staging(0), shape, 0, {}};
  for (int rank = 1; rank < me.size(); ++rank) ring.readers.push_back(rank);
  return ring;
}

void write_messages(Member& me, const Load& load) {
  RingWriter writer(me, stress_ring(me, load.shape));
  Random random(99);
  for (std::uint64_t n = 0; n < load.messages; ++n) {
    writer.send(Message(n).bytes());
    if (random.one_in(load.pause_one_in)) usleep(random.next() % 200);
  }
}

// Returns how many messages were wrong.
std::uint64_t read_messages(Member& me, const Load& load) {
  RingReader reader(me, stress_ring(me, load.shape));
  Random random(static_cast<std::uint64_t>(me.rank()));
  std::uint64_t wrong = 0;
  for (std::uint64_t n = 0; n < load.messages; ++n) {
    const Bytes message = reader.receive(load.spin);
    const Message expected(n);
    const Bytes bytes = expected.bytes();
    if (message.size() != bytes.size() ||
        std::memcmp(message.data(), bytes.data(), bytes.size()) != 0) {
      ++wrong;
    }
    if (random.one_in(load.pause_one_in)) usleep(random.next() % 200);
  }
  return wrong;
}

void run_load(int readers, const Load& load) {
  testing::run_ranks(readers + 1, [&](Member& me) {
    if (me.rank() == 0) return write_messages(me, load);
    CHECK(read_messages(me, load) == 0);
  });
}

// The same with the ranks as threads of this process, because ThreadSanitizer cannot look across
// processes.
void run_load_in_threads(int readers, const Load& load) {
  const Group group = Group::create({.size = readers + 1});
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> wrong{0};
  for (int rank = 0; rank <= readers; ++rank) {
    threads.emplace_back([&, rank] {
      Member me = group.join(rank);
      if (rank == 0) {
        write_messages(me, load);
      } else {
        wrong += read_messages(me, load);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong.load() == 0);
}

// Two sides wake each other alternately through bare doorbells, whose sleep has practically no
// limit here: a lost wake-up cannot be hidden by the end of a slice.
void ping_pong(Member& me, std::uint64_t turns) {
  const int peer = 1 - me.rank();
  std::atomic<std::uint64_t>& mine = me.flags(me.rank())[0].value;
  std::atomic<std::uint64_t>& theirs = me.flags(peer)[0].value;
  Random random(static_cast<std::uint64_t>(me.rank() + 1));
  for (std::uint64_t turn = 1; turn <= turns; ++turn) {
    const std::uint64_t awaited = me.rank() == 0 ? turn - 1 : turn;
    const auto ready = [&] { return theirs.load(std::memory_order_seq_cst) >= awaited; };
    for (std::uint64_t spin = random.next() % 64; spin != 0 && !ready(); --spin) cpu_relax();
    while (!ready()) {
      Doorbell::Sleeper sleeper(me.collective_bell(me.rank()));
      if (ready()) break;
      const std::int64_t start = now_ns();
      sleeper.sleep(std::chrono::seconds(30));
      if (seconds_since(start) > 25) fail("lost wake-up in turn ", turn);
    }
    for (std::uint64_t delay = random.next() % 64; delay != 0; --delay) cpu_relax();
    mine.store(turn, std::memory_order_seq_cst);
    me.collective_bell(peer).ring();
  }
}

}  // namespace

TEST_CASE("ten million messages: one reader, pauses on both sides") {
  run_load(1, {scaled(10'000'000), 20'000, microseconds(20), {1024, 128}});
}

TEST_CASE("ten million messages: three readers, pauses on all sides") {
  run_load(3, {scaled(10'000'000), 20'000, microseconds(20), {1024, 128}});
}

TEST_CASE("a million messages: readers that always sleep at once") {
  run_load(2, {scaled(1'000'000), 5'000, Nanoseconds(0), {256, 128}});
}

TEST_CASE("a ring of two slots, where everybody waits for everybody all the time") {
  run_load(3, {scaled(50'000), 5'000, microseconds(5), {2, 64}});
}

TEST_CASE("the same with threads, for ThreadSanitizer") {
  run_load_in_threads(1, {scaled(1'000'000), 20'000, microseconds(20), {512, 128}});
  run_load_in_threads(3, {scaled(1'000'000), 20'000, microseconds(5), {512, 128}});
  run_load_in_threads(3, {scaled(40'000), 20'000, Nanoseconds(0), {4, 64}});
}

TEST_CASE("no wake-up is lost between two processes") {
  testing::run_ranks(2, [](Member& me) { ping_pong(me, scaled(200'000)); });
}

TEST_CASE("no wake-up is lost between two threads") {
  const Group group = Group::create({.size = 2});
  Member one = group.join(0);
  Member two = group.join(1);
  const std::uint64_t turns = scaled(100'000);
  std::thread thread([&] { ping_pong(one, turns); });
  ping_pong(two, turns);
  thread.join();
}

}  // namespace nvllm::ipc
