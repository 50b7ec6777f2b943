#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/testing/backend_under_test.h"

namespace nvllm {
namespace {

using testing::bytes_of;
using testing::Gate;
using testing::kLong;
using testing::kShort;

TEST_CASE("a stream runs its work in order") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  std::vector<int> order;
  for (int i = 0; i < 500; ++i) stream->host_call([&order, i] { order.push_back(i); });
  stream->synchronize();
  REQUIRE(order.size() == 500);
  for (int i = 0; i < 500; ++i) CHECK(order[i] == i);
}

TEST_CASE("copies, fills and host calls of a stream are in one order") {
  BACKEND_OR_SKIP(backend);
  constexpr std::size_t kBytes = 1000;
  constexpr int kRounds = 100;
  Buffer device = backend->allocate(MemoryKind::device, kBytes, "test");
  Buffer host = backend->allocate(MemoryKind::pinned, kBytes, "test");
  int right = 0;
  const auto stream = backend->create_stream();
  for (int i = 0; i < kRounds; ++i) {
    backend->fill(device.data(), static_cast<unsigned char>(i), kBytes, *stream);
    backend->copy(host.data(), device.data(), kBytes, *stream);
    stream->host_call(
        [&right, &host, i] { right += bytes_of(host)[0] == i && bytes_of(host)[kBytes - 1] == i; });
  }
  stream->synchronize();
  CHECK(right == kRounds);
}

TEST_CASE("enqueueing returns before the work has run") {
  BACKEND_OR_SKIP(backend);
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{40} << 20}) {
    CAPTURE(bytes);
    Buffer from = backend->allocate(MemoryKind::pinned, bytes, "test");
    Buffer device = backend->allocate(MemoryKind::device, bytes, "test");
    Buffer to = backend->allocate(MemoryKind::pinned, bytes, "test");
    std::memset(from.data(), 1, bytes);
    std::memset(to.data(), 0, bytes);
    const auto stream = backend->create_stream();
    Gate gate(*stream);
    backend->copy(device.data(), from.data(), bytes, *stream);
    backend->copy(to.data(), device.data(), bytes, *stream);
    CHECK_FALSE(stream->idle());
    CHECK(bytes_of(to)[0] == 0);
    CHECK(bytes_of(to)[bytes - 1] == 0);
    gate.open();
    stream->synchronize();
    CHECK(stream->idle());
    CHECK(bytes_of(to)[0] == 1);
    CHECK(bytes_of(to)[bytes - 1] == 1);
  }
}

TEST_CASE("a new stream is idle") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream(StreamPriority::high);
  CHECK(stream->kind() == backend->kind());
  CHECK(stream->idle());
  stream->synchronize();
}

TEST_CASE("streams do not wait for each other") {
  BACKEND_OR_SKIP(backend);
  Buffer buffer = backend->allocate(MemoryKind::device, 100, "test");
  const auto held = backend->create_stream();
  const auto free = backend->create_stream();
  Gate gate(*held);
  backend->fill(buffer.data(), 1, 100, *free);
  CHECK(free->synchronize_for(kLong));
  CHECK_FALSE(held->idle());
  gate.open();
  held->synchronize();
}

TEST_CASE("synchronize_for gives up at its limit, and the work goes on") {
  BACKEND_OR_SKIP(backend);
  bool ran = false;
  const auto stream = backend->create_stream();
  Gate gate(*stream);
  stream->host_call([&ran] { ran = true; });
  CHECK_FALSE(stream->synchronize_for(Nanoseconds(0)));
  CHECK_FALSE(stream->synchronize_for(kShort));
  gate.open();
  CHECK(stream->synchronize_for(kLong));
  CHECK(ran);
}

TEST_CASE("an Error of a stream's work surfaces at synchronize, once, and the stream goes on") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto other = backend->create_stream();
  for (const bool limited : {false, true}) {
    stream->host_call([] { fail("the disk is full"); });
    other->synchronize();
    if (limited) {
      CHECK_THROWS_WITH_AS(stream->synchronize_for(kLong), "the disk is full", Error);
    } else {
      CHECK_THROWS_WITH_AS(stream->synchronize(), "the disk is full", Error);
    }
    stream->synchronize();
    bool ran = false;
    stream->host_call([&ran] { ran = true; });
    stream->synchronize();
    CHECK(ran);
  }
}

TEST_CASE("of several Errors the first surfaces") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  stream->host_call([] { fail("first"); });
  stream->host_call([] { fail("second"); });
  CHECK_THROWS_WITH_AS(stream->synchronize(), "first", Error);
  stream->synchronize();
}

TEST_CASE("copies and fills take any size and alignment, and touch nothing else") {
  BACKEND_OR_SKIP(backend);
  constexpr std::size_t kRoom = 70000, kGuard = 64;
  Buffer device = backend->allocate(MemoryKind::device, kRoom, "test");
  Buffer from = backend->allocate(MemoryKind::pinned, kRoom, "test");
  Buffer to = backend->allocate(MemoryKind::pinned, kRoom, "test");
  for (std::size_t i = 0; i < kRoom; ++i) {
    bytes_of(from)[i] = static_cast<unsigned char>(i * 7 + 1);
  }
  const auto stream = backend->create_stream();
  for (const std::size_t bytes : {0, 1, 3, 16, 255, 4097, 65537}) {
    for (const std::size_t offset : {0, 1, 13}) {
      CAPTURE(bytes);
      CAPTURE(offset);
      const std::size_t begin = kGuard + offset;
      unsigned char* part = bytes_of(device) + begin;
      backend->fill(device.data(), 0xee, kRoom, *stream);
      backend->copy(part, bytes_of(from) + begin, bytes, *stream);
      if (bytes >= 3) backend->fill(part + 1, 0x55, bytes - 2, *stream);
      backend->copy(to.data(), device.data(), kRoom, *stream);
      stream->synchronize();
      std::vector<unsigned char> expected(kRoom, 0xee);
      std::memcpy(expected.data() + begin, bytes_of(from) + begin, bytes);
      if (bytes >= 3) std::memset(expected.data() + begin + 1, 0x55, bytes - 2);
      CHECK(std::memcmp(expected.data(), to.data(), kRoom) == 0);
    }
  }
}

TEST_CASE("copies go between any two kinds of memory") {
  BACKEND_OR_SKIP(backend);
  constexpr std::size_t kBytes = 5000;
  constexpr MemoryKind kKinds[] = {MemoryKind::device, MemoryKind::pinned, MemoryKind::host};
  const auto stream = backend->create_stream();
  unsigned char mark = 1;
  for (const MemoryKind source : kKinds) {
    for (const MemoryKind target : kKinds) {
      CAPTURE(name_of(source));
      CAPTURE(name_of(target));
      Buffer first = backend->allocate(MemoryKind::pinned, kBytes, "test");
      Buffer from = backend->allocate(source, kBytes, "test");
      Buffer to = backend->allocate(target, kBytes, "test");
      Buffer last = backend->allocate(MemoryKind::pinned, kBytes, "test");
      std::memset(first.data(), ++mark, kBytes);
      std::memset(last.data(), 0, kBytes);
      backend->copy(from.data(), first.data(), kBytes, *stream);
      backend->copy(to.data(), from.data(), kBytes, *stream);
      backend->copy(last.data(), to.data(), kBytes, *stream);
      stream->synchronize();
      CHECK(std::memcmp(first.data(), last.data(), kBytes) == 0);
    }
  }
}

}  // namespace
}  // namespace nvllm
