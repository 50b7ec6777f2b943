#include "ipc/ring.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "testing/ranks.h"

namespace nvllm::ipc {
namespace {

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

}  // namespace nvllm::ipc
