#include <cstring>

#include "base/error.h"
#include "device/testing/backend_under_test.h"

namespace nvllm {
namespace {

using testing::bytes_of;
using testing::Gate;
using testing::kLong;

TEST_CASE("a capture runs nothing; each launch of the graph does") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  int runs = 0;
  const auto graph = backend->capture(*stream, [&] { stream->host_call([&runs] { ++runs; }); });
  stream->synchronize();
  CHECK(runs == 0);
  for (int launch = 1; launch <= 100; ++launch) graph->launch(*stream);
  stream->synchronize();
  CHECK(runs == 100);
}

TEST_CASE("a launch sees the data of its time") {
  BACKEND_OR_SKIP(backend);
  constexpr std::size_t kBytes = 10000;
  Buffer in = backend->allocate(MemoryKind::pinned, kBytes, "test");
  Buffer device = backend->allocate(MemoryKind::device, kBytes, "test");
  Buffer out = backend->allocate(MemoryKind::pinned, kBytes, "test");
  const auto stream = backend->create_stream();
  const auto graph = backend->capture(*stream, [&] {
    backend->fill(device.data(), 0, kBytes, *stream);
    backend->copy(device.data(), in.data(), kBytes - 1, *stream);
    backend->copy(out.data(), device.data(), kBytes, *stream);
  });
  for (unsigned char value = 1; value <= 50; ++value) {
    std::memset(in.data(), value, kBytes);
    graph->launch(*stream);
    stream->synchronize();
    CHECK(bytes_of(out)[0] == value);
    CHECK(bytes_of(out)[kBytes - 2] == value);
    CHECK(bytes_of(out)[kBytes - 1] == 0);
  }
}

TEST_CASE("a graph can be launched in another stream than the captured one") {
  BACKEND_OR_SKIP(backend);
  Buffer buffer = backend->allocate(MemoryKind::pinned, 100, "test");
  const auto captured = backend->create_stream();
  const auto stream = backend->create_stream();
  const auto graph =
      backend->capture(*captured, [&] { backend->fill(buffer.data(), 9, 100, *captured); });
  Gate gate(*captured);
  graph->launch(*stream);
  CHECK(stream->synchronize_for(kLong));
  CHECK(bytes_of(buffer)[99] == 9);
}

TEST_CASE("launches of one graph do not overlap, whatever their streams") {
  BACKEND_OR_SKIP(backend);
  const auto one = backend->create_stream();
  const auto two = backend->create_stream();
  int runs = 0;  // unsynchronised
  const auto graph = backend->capture(*one, [&] { one->host_call([&runs] { ++runs; }); });
  for (int i = 0; i < 100; ++i) graph->launch(i % 2 == 0 ? *one : *two);
  one->synchronize();
  two->synchronize();
  CHECK(runs == 100);
}

// in -> a on the captured stream, a -> b on a second and a -> c on a third, (b, c) -> out on the
// first.
TEST_CASE("a graph holds streams that fork and join by events") {
  BACKEND_OR_SKIP(backend);
  constexpr std::size_t kBytes = 3000;
  Buffer in = backend->allocate(MemoryKind::pinned, kBytes, "test");
  Buffer device = backend->allocate(MemoryKind::device, 3 * kBytes, "test");
  Buffer out = backend->allocate(MemoryKind::pinned, 2 * kBytes, "test");
  unsigned char* a = bytes_of(device);
  unsigned char* b = a + kBytes;
  unsigned char* c = b + kBytes;
  const auto first = backend->create_stream();
  const auto second = backend->create_stream();
  const auto third = backend->create_stream();
  const auto forked = backend->create_event();
  const auto second_done = backend->create_event();
  const auto third_done = backend->create_event();
  const auto graph = backend->capture(*first, [&] {
    backend->copy(a, in.data(), kBytes, *first);
    forked->record(*first);
    second->wait(*forked);
    third->wait(*forked);
    backend->copy(b, a, kBytes, *second);
    backend->copy(c, a, kBytes, *third);
    second_done->record(*second);
    third_done->record(*third);
    first->wait(*second_done);
    first->wait(*third_done);
    backend->copy(out.data(), b, 2 * kBytes, *first);
    // The next launch must not find this one's data.
    backend->fill(a, 0, 3 * kBytes, *first);
  });
  for (unsigned char value = 1; value <= 100; ++value) {
    std::memset(in.data(), value, kBytes);
    graph->launch(*first);
    first->synchronize();
    for (std::size_t i = 0; i < 2 * kBytes; i += kBytes - 1) CHECK(bytes_of(out)[i] == value);
  }
  for (Stream* stream : {first.get(), second.get(), third.get()}) {
    CHECK(stream->synchronize_for(kLong));  // all have left the capture
  }
}

TEST_CASE("streams may wait for each other several times in a graph") {
  BACKEND_OR_SKIP(backend);
  constexpr int kRounds = 5, kLaunches = 20;
  const auto one = backend->create_stream();
  const auto two = backend->create_stream();
  const auto one_done = backend->create_event();
  const auto two_done = backend->create_event();
  int count = 0, right = 0;  // unsynchronised
  const auto graph = backend->capture(*one, [&] {
    for (int i = 0; i < kRounds; ++i) {
      one->host_call([&, i] { right += count++ % (2 * kRounds) == 2 * i; });
      one_done->record(*one);
      two->wait(*one_done);
      two->host_call([&, i] { right += count++ % (2 * kRounds) == 2 * i + 1; });
      two_done->record(*two);
      one->wait(*two_done);
    }
  });
  for (int launch = 0; launch < kLaunches; ++launch) graph->launch(*one);
  one->synchronize();
  CHECK(count == 2 * kRounds * kLaunches);
  CHECK(right == count);
}

TEST_CASE("a graph may go while its launch is under way") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto side = backend->create_stream();
  const auto forked = backend->create_event();
  const auto joined = backend->create_event();
  int value = 0;
  auto graph = backend->capture(*stream, [&] {
    forked->record(*stream);
    side->wait(*forked);
    side->host_call([&value] { value = 7; });
    joined->record(*side);
    stream->wait(*joined);
  });
  Gate gate(*stream);
  graph->launch(*stream);
  graph.reset();
  gate.open();
  stream->synchronize();
  CHECK(value == 7);
}

TEST_CASE("an empty graph can be launched") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto graph = backend->capture(*stream, [] {});
  graph->launch(*stream);
  CHECK(stream->synchronize_for(kLong));
}

TEST_CASE("an Error of a graph's work surfaces where it was launched; the graph stays good") {
  BACKEND_OR_SKIP(backend);
  const auto captured = backend->create_stream();
  const auto stream = backend->create_stream();
  bool broken = true;
  int runs = 0;
  const auto graph = backend->capture(*captured, [&] {
    captured->host_call([&] {
      if (broken) fail("no such page");
      ++runs;
    });
  });
  graph->launch(*stream);
  CHECK_THROWS_WITH_AS(stream->synchronize(), "no such page", Error);
  captured->synchronize();
  broken = false;
  graph->launch(*stream);
  stream->synchronize();
  CHECK(runs == 1);
}

TEST_CASE("what throws in a capture leaves it, and the stream is usable") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  bool ran = false;
  const auto work = [&] {
    stream->host_call([&ran] { ran = true; });
    fail("changed my mind");
  };
  CHECK_THROWS_WITH_AS(backend->capture(*stream, work), "changed my mind", Error);
  stream->synchronize();
  CHECK_FALSE(ran);
  stream->host_call([&ran] { ran = true; });
  stream->synchronize();
  CHECK(ran);
}

TEST_CASE("a stream that is not waited for at the end of a capture is an Error") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto side = backend->create_stream();
  const auto forked = backend->create_event();
  const auto joined = backend->create_event();
  bool ran = false;
  const auto work = [&] {
    forked->record(*stream);
    side->wait(*forked);
    side->host_call([] {});
    joined->record(*side);
    stream->wait(*joined);
    side->host_call([&ran] { ran = true; });  // after the event
  };
  CHECK_THROWS_AS(backend->capture(*stream, work), Error);
  for (Stream* s : {stream.get(), side.get()}) {
    s->host_call([] {});
    CHECK(s->synchronize_for(kLong));
  }
  CHECK_FALSE(ran);
}

TEST_CASE("waiting in a capture for an event from outside is an Error") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto other = backend->create_stream();
  const auto event = backend->create_event();
  event->record(*other);
  CHECK_THROWS_AS(backend->capture(*stream, [&] { stream->wait(*event); }), Error);
  stream->host_call([] {});
  CHECK(stream->synchronize_for(kLong));
}

TEST_CASE("synchronizing a stream in its capture is an Error") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  CHECK_THROWS_AS(backend->capture(*stream, [&] { stream->synchronize(); }), Error);
  CHECK(stream->synchronize_for(kLong));
}

}  // namespace
}  // namespace nvllm
