// The order of pieces in the slots, with counters in ordinary memory and a thread for each end.
// gpu_stage_link_test.cc tests that the kernels do the same.
#include "ipc/collective/peer/hand_over.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

namespace nvllm::ipc::peer {
namespace {

std::vector<std::pair<std::size_t, std::size_t>> pieces_of(std::size_t bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  for_each_piece(bytes,
                 [&](std::size_t offset, std::size_t of) { pieces.emplace_back(offset, of); });
  return pieces;
}

TEST_CASE("a tensor is cut into whole slots and a rest") {
  using Pieces = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(pieces_of(0).empty());
  CHECK(pieces_of(1) == Pieces{{0, 1}});
  CHECK(pieces_of(kLinkSlotBytes) == Pieces{{0, kLinkSlotBytes}});
  CHECK(pieces_of(2 * kLinkSlotBytes + 5) ==
        Pieces{{0, kLinkSlotBytes}, {kLinkSlotBytes, kLinkSlotBytes}, {2 * kLinkSlotBytes, 5}});
}

TEST_CASE("the first two pieces need nothing, and each later one that its slot was taken") {
  CHECK(needed_before_send(0) == 0);
  CHECK(needed_before_send(1) == 0);
  CHECK(needed_before_send(2) == 1);
  CHECK(needed_before_send(1'000'000) == 999'999);
  for (std::uint64_t piece = 2; piece < 10; ++piece) {
    CHECK(link_slot_of(piece) == link_slot_of(needed_before_send(piece) - 1));
    CHECK(link_slot_of(piece) != link_slot_of(piece - 1));
  }
}

TEST_CASE("no piece is overwritten before it is taken, whoever is late") {
  constexpr std::uint64_t kPieces = 20'000;
  std::array<std::atomic<std::uint64_t>, kLinkSlots> slots{};
  std::atomic<std::uint64_t> arrived = 0, taken = 0;
  std::thread sender([&] {
    for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
      while (taken < needed_before_send(piece)) std::this_thread::yield();
      if (piece % 997 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      slots[link_slot_of(piece)] = piece + 1;
      arrived = piece + 1;
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
    while (arrived < piece + 1) std::this_thread::yield();
    if (piece % 1009 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    if (slots[link_slot_of(piece)] != piece + 1) ++wrong;
    taken = piece + 1;
  }
  sender.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace nvllm::ipc::peer
