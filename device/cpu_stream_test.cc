// What only the CPU backend promises.
#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/backend.h"
#include "device/cpu/stream.h"

namespace nvllm {
namespace {

using std::chrono::milliseconds;

// Waits, without a core of its own, until the flag is set. False after a minute.
bool becomes_true(const std::atomic<bool>& flag) {
  const std::int64_t start = now_ns();
  while (!flag.load()) {
    if (seconds_since(start) > 60) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_CASE("tasks of any size run in order") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  std::vector<int> seen;
  std::array<int, 100> large{};
  large[99] = 2;
  cpu::stream(*stream).submit([&seen] { seen.push_back(1); });
  cpu::stream(*stream).submit([&seen, large] { seen.push_back(large[99]); });
  cpu::stream(*stream).submit(
      [&seen, owned = std::make_unique<int>(3)] { seen.push_back(*owned); });
  stream->synchronize();
  CHECK(seen == std::vector<int>{1, 2, 3});
}

TEST_CASE("what a task owns goes when it has run, also when it was skipped") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto owned = std::make_shared<int>(0);
  for (const bool failing : {false, true}) {
    if (failing) cpu::stream(*stream).submit([] { fail("broken"); });
    cpu::stream(*stream).submit([owned] { ++*owned; });
    if (failing) {
      CHECK_THROWS_AS(stream->synchronize(), Error);
    } else {
      stream->synchronize();
    }
    CHECK(owned.use_count() == 1);
    CHECK(*owned == 1);
  }
}

TEST_CASE("a full queue makes the caller wait, and loses nothing") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  constexpr std::uint64_t kTasks = 5 * cpu::Stream::kCapacity + 3;
  std::atomic<bool> go{false};
  std::uint64_t count = 0, right = 0;
  cpu::stream(*stream).submit([&go] { becomes_true(go); });
  std::thread opener([&go] {
    std::this_thread::sleep_for(milliseconds(20));
    go = true;
  });
  for (std::uint64_t i = 0; i < kTasks; ++i) {
    cpu::stream(*stream).submit([&, i] { right += count++ == i; });
  }
  stream->synchronize();
  opener.join();
  CHECK(right == kTasks);
}

TEST_CASE("a destroyed stream first runs what is queued") {
  const auto backend = create_backend(DeviceKind::cpu);
  int count = 0;
  {
    const auto stream = backend->create_stream();
    for (int i = 0; i < 1000; ++i) cpu::stream(*stream).submit([&count] { ++count; });
  }
  CHECK(count == 1000);
}

TEST_CASE("work behind a failed task is skipped until the failure is reported") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  bool ran = false;
  stream->host_call([] { fail("broken"); });
  stream->host_call([&ran] { ran = true; });
  CHECK_THROWS_AS(stream->synchronize(), Error);
  CHECK_FALSE(ran);
}

TEST_CASE("an Error keeps its type on its way to synchronize") {
  struct OutOfPages : Error {
    using Error::Error;
  };
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  stream->host_call([] { throw OutOfPages("no pages"); });
  CHECK_THROWS_AS(stream->synchronize(), OutOfPages);
}

TEST_CASE("a failure passes on to the streams that wait for the failed work, and to no other") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto failing = backend->create_stream();
  const auto waiter = backend->create_stream();
  const auto before = backend->create_event();
  const auto after = backend->create_event();
  bool ran = false;
  before->record(*failing);
  failing->host_call([] { fail("broken"); });
  after->record(*failing);

  waiter->wait(*before);
  waiter->host_call([&ran] { ran = true; });
  waiter->synchronize();
  CHECK(ran);

  ran = false;
  waiter->wait(*after);
  waiter->host_call([&ran] { ran = true; });
  CHECK_THROWS_WITH_AS(waiter->synchronize(), "broken", Error);
  CHECK_FALSE(ran);
  CHECK_THROWS_WITH_AS(after->synchronize(), "broken", Error);
  CHECK_THROWS_AS(failing->synchronize(), Error);

  after->record(*failing);  // work after the failure was reported is good
  waiter->wait(*after);
  waiter->synchronize();
  after->synchronize();
}

TEST_CASE("the branches of a graph run side by side") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto side = backend->create_stream();
  const auto forked = backend->create_event();
  const auto joined = backend->create_event();
  std::atomic<bool> ping{false}, pong{false}, met{false};
  const auto graph = backend->capture(*stream, [&] {
    forked->record(*stream);
    side->wait(*forked);
    // Each waits for the other: one after the other they would never end.
    side->host_call([&] {
      ping = true;
      becomes_true(pong);
    });
    stream->host_call([&] {
      pong = true;
      met = becomes_true(ping);
    });
    joined->record(*side);
    stream->wait(*joined);
  });
  for (int launch = 0; launch < 10; ++launch) {
    ping = pong = met = false;
    graph->launch(*stream);
    stream->synchronize();
    CHECK(met);
  }
}

TEST_CASE("a failure in a branch of a graph ends the launch, and not the graph") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto side = backend->create_stream();
  const auto forked = backend->create_event();
  const auto joined = backend->create_event();
  bool broken = true, ran = false;
  const auto graph = backend->capture(*stream, [&] {
    forked->record(*stream);
    side->wait(*forked);
    side->host_call([&] {
      if (broken) fail("broken");
    });
    joined->record(*side);
    stream->wait(*joined);
    stream->host_call([&ran] { ran = true; });
  });
  graph->launch(*stream);
  CHECK_THROWS_WITH_AS(stream->synchronize(), "broken", Error);
  CHECK_FALSE(ran);
  broken = false;
  graph->launch(*stream);
  stream->synchronize();
  CHECK(ran);
}

TEST_CASE("an event of a finished capture is no event of a stream") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto event = backend->create_event();
  const auto graph = backend->capture(*stream, [&] { event->record(*stream); });
  CHECK_THROWS_AS(event->reached(), Error);
  CHECK_THROWS_AS(event->synchronize(), Error);
  CHECK_THROWS_AS(stream->wait(*event), Error);
  event->record(*stream);
  event->synchronize();
}

TEST_CASE("a stream is captured once at a time, and launches no graph meanwhile") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  const auto graph = backend->capture(*stream, [] {});
  const auto capture_again = [&] { backend->capture(*stream, [] {}); };
  CHECK_THROWS_AS(backend->capture(*stream, capture_again), Error);
  CHECK_THROWS_AS(backend->capture(*stream, [&] { graph->launch(*stream); }), Error);
  stream->synchronize();
}

TEST_CASE("threads have names") {
  const auto backend = create_backend(DeviceKind::cpu);
  const auto stream = backend->create_stream();
  stream->synchronize();
  char name[16] = "";
  cpu::stream(*stream).submit([&name] { pthread_getname_np(pthread_self(), name, sizeof name); });
  stream->synchronize();
  CHECK(std::string(name) == "stream-0");
}

TEST_CASE("idle streams, and threads that wait for them, take no processor time") {
  const auto backend = create_backend(DeviceKind::cpu);
  std::array<std::unique_ptr<Stream>, 8> streams;
  for (auto& stream : streams) stream = backend->create_stream();
  for (const auto& stream : streams) stream->host_call([] {});
  for (const auto& stream : streams) stream->synchronize();
  const double before = cpu_seconds();
  streams[0]->host_call([] { std::this_thread::sleep_for(milliseconds(300)); });
  streams[0]->synchronize();
  CHECK(cpu_seconds() - before < 0.1);  // of 0.3 s on 9 threads
}

// Many threads, each with streams of its own that wait for each other through events and graphs:
// for ThreadSanitizer, and for lost wake-ups anywhere.
TEST_CASE("streams, events and graphs of several threads at once") {
  const auto backend = create_backend(DeviceKind::cpu);
  constexpr int kThreads = 3, kRounds = 300;
  std::array<std::thread, kThreads> threads;
  std::atomic<int> wrong{0};
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      const auto one = backend->create_stream();
      const auto two = backend->create_stream();
      const auto forked = backend->create_event();
      const auto joined = backend->create_event();
      int a = 0, b = 0;
      const auto fork_and_join = [&] {
        one->host_call([&a] { ++a; });
        forked->record(*one);
        two->wait(*forked);
        two->host_call([&] { b = a; });
        joined->record(*two);
        one->wait(*joined);
        one->host_call([&] { wrong += a != b; });
      };
      const auto graph = backend->capture(*one, fork_and_join);
      for (int i = 0; i < kRounds; ++i) {
        fork_and_join();
        graph->launch(*one);
        if (i % 7 == 0) one->synchronize();
        if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(1));
      }
      one->synchronize();
      wrong += a != 2 * kRounds;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace nvllm
