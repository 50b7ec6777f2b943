#include <thread>

#include "base/error.h"
#include "device/testing/backend_under_test.h"

namespace nvllm {
namespace {

using testing::bytes_of;
using testing::Gate;
using testing::kLong;
using testing::kShort;

TEST_CASE("an event that was never recorded is reached, and holds nobody up") {
  BACKEND_OR_SKIP(backend);
  const auto event = backend->create_event();
  const auto stream = backend->create_stream();
  CHECK(event->reached());
  event->synchronize();
  stream->wait(*event);
  CHECK(stream->synchronize_for(kLong));
}

TEST_CASE("an event is reached when the work before it has run") {
  BACKEND_OR_SKIP(backend);
  const auto event = backend->create_event();
  const auto stream = backend->create_stream();
  Gate gate(*stream);
  event->record(*stream);
  CHECK_FALSE(event->reached());
  gate.open();
  event->synchronize();
  CHECK(event->reached());
}

TEST_CASE("an event does not wait for work behind it") {
  BACKEND_OR_SKIP(backend);
  const auto event = backend->create_event();
  const auto stream = backend->create_stream();
  event->record(*stream);
  Gate gate(*stream);
  event->synchronize();
  CHECK(event->reached());
}

TEST_CASE("a stream that waits for an event sees the work before it") {
  BACKEND_OR_SKIP(backend);
  constexpr std::size_t kBytes = 100000;
  Buffer device = backend->allocate(MemoryKind::device, kBytes, "test");
  Buffer host = backend->allocate(MemoryKind::pinned, kBytes, "test");
  const auto producer = backend->create_stream();
  const auto consumer = backend->create_stream();
  const auto produced = backend->create_event();
  backend->fill(device.data(), 1, kBytes, *producer);
  producer->synchronize();

  Gate gate(*producer);
  backend->fill(device.data(), 2, kBytes, *producer);
  produced->record(*producer);
  consumer->wait(*produced);
  backend->copy(host.data(), device.data(), kBytes, *consumer);
  CHECK_FALSE(consumer->synchronize_for(kShort));
  gate.open();
  consumer->synchronize();
  CHECK(bytes_of(host)[0] == 2);
  CHECK(bytes_of(host)[kBytes - 1] == 2);
}

TEST_CASE("two streams take turns by events") {
  BACKEND_OR_SKIP(backend);
  constexpr int kRounds = 200;
  const auto one = backend->create_stream();
  const auto two = backend->create_stream();
  const auto one_done = backend->create_event();
  const auto two_done = backend->create_event();
  int count = 0, right = 0;  // unsynchronised: the events are what orders the streams
  for (int i = 0; i < kRounds; ++i) {
    one->wait(*two_done);
    one->host_call([&, i] { right += count++ == 2 * i; });
    one_done->record(*one);
    two->wait(*one_done);
    two->host_call([&, i] { right += count++ == 2 * i + 1; });
    two_done->record(*two);
  }
  two->synchronize();
  one->synchronize();
  CHECK(right == 2 * kRounds);
}

TEST_CASE("a wait keeps its place when the event is recorded again") {
  BACKEND_OR_SKIP(backend);
  const auto first = backend->create_stream();
  const auto second = backend->create_stream();
  const auto waiter = backend->create_stream();
  const auto event = backend->create_event();
  Gate first_gate(*first);
  event->record(*first);
  waiter->wait(*event);
  Gate second_gate(*second);
  event->record(*second);

  CHECK_FALSE(waiter->synchronize_for(kShort));
  first_gate.open();
  CHECK(waiter->synchronize_for(kLong));  // although the second record is not reached
  CHECK_FALSE(event->reached());
  second_gate.open();
  event->synchronize();
}

TEST_CASE("a record that is reached does not release a wait for an earlier one") {
  BACKEND_OR_SKIP(backend);
  const auto held = backend->create_stream();
  const auto free = backend->create_stream();
  const auto waiter = backend->create_stream();
  const auto event = backend->create_event();
  Gate gate(*held);
  event->record(*held);
  waiter->wait(*event);
  event->record(*free);
  free->synchronize();
  CHECK(event->reached());
  CHECK_FALSE(waiter->synchronize_for(kShort));
  gate.open();
  CHECK(waiter->synchronize_for(kLong));
}

TEST_CASE("an event outlives its stream") {
  BACKEND_OR_SKIP(backend);
  const auto event = backend->create_event();
  const auto waiter = backend->create_stream();
  int value = 0;
  {
    const auto stream = backend->create_stream();
    stream->host_call([&value] { value = 1; });
    event->record(*stream);
  }
  waiter->wait(*event);
  waiter->synchronize();
  CHECK(event->reached());
  CHECK(value == 1);
}

TEST_CASE("events with timing tell the time between them") {
  BACKEND_OR_SKIP(backend);
  const auto start = backend->create_event(true);
  const auto end = backend->create_event(true);
  const auto stream = backend->create_stream();
  start->record(*stream);
  stream->host_call([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  end->record(*stream);
  stream->synchronize();
  CHECK(end->seconds_since(*start) >= 0.019);
  CHECK(end->seconds_since(*start) < 30);
}

TEST_CASE("asking an event without timing for the time is an Error") {
  BACKEND_OR_SKIP(backend);
  const auto start = backend->create_event();
  const auto end = backend->create_event();
  const auto stream = backend->create_stream();
  start->record(*stream);
  end->record(*stream);
  stream->synchronize();
  CHECK_THROWS_AS(end->seconds_since(*start), Error);
}

}  // namespace
}  // namespace nvllm
