#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "base/error.h"
#include "device/testing/backend_under_test.h"
#include "testing/error_of.h"

namespace nvllm {
namespace {

constexpr MemoryKind kKinds[] = {MemoryKind::device, MemoryKind::pinned, MemoryKind::host};

bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 256 == 0;
}

TEST_CASE("a backend describes itself") {
  BACKEND_OR_SKIP(backend);
  CHECK(backend->description().size() > 3);
  const DeviceMemory memory = backend->memory();
  CHECK(memory.available > 0);
  CHECK(memory.available <= memory.total);
}

TEST_CASE("memory is aligned and has the size that was asked for") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  for (const MemoryKind kind : kKinds) {
    CAPTURE(name_of(kind));
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{1000}, std::size_t{10} << 20, (std::size_t{40} << 20) + 1}) {
      Buffer buffer = backend->allocate(kind, bytes, "test");
      REQUIRE(buffer);
      CHECK(buffer.bytes() == bytes);
      CHECK(buffer.kind() == kind);
      CHECK(is_aligned(buffer.data()));
      backend->fill(buffer.data(), 1, bytes, *stream);  // all of it is there
      stream->synchronize();
    }
  }
}

TEST_CASE("zero bytes give an empty buffer and no line in the ledger") {
  BACKEND_OR_SKIP(backend);
  for (const MemoryKind kind : kKinds) {
    const Buffer buffer = backend->allocate(kind, 0, "nothing");
    CHECK_FALSE(buffer);
    CHECK(buffer.bytes() == 0);
  }
  CHECK(backend->ledger().entries().empty());
}

TEST_CASE("the ledger adds up to the byte") {
  BACKEND_OR_SKIP(backend);
  std::vector<Buffer> buffers;
  std::size_t allocated[3] = {};
  for (int i = 0; i < 30; ++i) {
    const std::size_t bytes = 1 + 977 * i;
    buffers.push_back(backend->allocate(kKinds[i % 3], bytes, i % 2 == 0 ? "even" : "odd"));
    allocated[i % 3] += bytes;
  }
  for (int k = 0; k < 3; ++k) {
    CHECK(backend->ledger().total(kKinds[k]) == allocated[k]);
    std::size_t sum = 0, count = 0;
    for (const Ledger::Entry& entry : backend->ledger().entries()) {
      if (entry.kind != kKinds[k]) continue;
      sum += entry.bytes;
      count += entry.buffers;
    }
    CHECK(sum == allocated[k]);
    CHECK(count == 10);
  }
  const std::size_t freed = buffers[0].bytes() + buffers[3].bytes();
  buffers[0] = Buffer();
  buffers[3] = std::move(buffers[1]);
  CHECK(backend->ledger().total(kKinds[0]) == allocated[0] - freed);
  CHECK(backend->ledger().total(kKinds[1]) == allocated[1]);
  buffers.clear();
  CHECK(backend->ledger().entries().empty());
}

TEST_CASE("freed memory can be had again") {
  BACKEND_OR_SKIP(backend);
  // On a GPU together far more than there is. The host's memory is counted by the leak checkers,
  // which are slow with large pieces.
  const std::size_t bytes =
      backend->kind() == DeviceKind::cuda ? backend->memory().available / 4 : std::size_t{1} << 20;
  for (int i = 0; i < 20; ++i) {
    const Buffer buffer = backend->allocate(MemoryKind::device, bytes, "test");
    CHECK(buffer);
  }
}

TEST_CASE("more memory than there is: the Error says what was asked for, why, and what there is") {
  BACKEND_OR_SKIP(backend);
  for (const MemoryKind kind : kKinds) {
    const std::string message = testing::error_of(
        [&] { backend->allocate(kind, std::size_t{1} << 50, "very large weights"); });
    CAPTURE(message);
    CHECK(message.find("asked 1 PiB of ") != std::string::npos);
    CHECK(message.find("'very large weights'") != std::string::npos);
    CHECK(message.find(" has ") != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
  CHECK(backend->ledger().entries().empty());
  CHECK(backend->allocate(MemoryKind::device, 100, "small"));  // nothing is broken
}

TEST_CASE("an arena hands out aligned parts that do not overlap") {
  BACKEND_OR_SKIP(backend);
  Arena arena(backend->allocate(MemoryKind::pinned, 2048, "arena"));
  CHECK(arena.capacity() == 2048);
  auto* one = static_cast<unsigned char*>(arena.allocate(1, "one"));
  auto* two = static_cast<unsigned char*>(arena.allocate(257, "two"));
  auto* three = static_cast<unsigned char*>(arena.allocate(256, "three"));
  for (const void* part : {one, two, three}) CHECK(is_aligned(part));
  CHECK(two - one == 256);
  CHECK(three - two == 512);
  CHECK(arena.used() == 1024);
  arena.reset();
  CHECK(arena.used() == 0);
  CHECK(arena.allocate(2048, "all") == one);
}

TEST_CASE("an arena that is full says what was asked, of what, and what is left") {
  BACKEND_OR_SKIP(backend);
  Arena arena(backend->allocate(MemoryKind::device, 1000, "arena"));
  arena.allocate(512, "first");
  const std::string message = testing::error_of([&] { arena.allocate(489, "activations"); });
  CAPTURE(message);
  CHECK(message.find("489 B") != std::string::npos);
  CHECK(message.find("'activations'") != std::string::npos);
  CHECK(message.find("1000 B") != std::string::npos);
  CHECK(message.find("488 B left") != std::string::npos);
  CHECK(arena.allocate(488, "the rest") != nullptr);  // to the last byte
  CHECK(arena.used() == 1000);
  CHECK_THROWS_AS(arena.allocate(1, "one more"), Error);
}

}  // namespace
}  // namespace nvllm
