#include "kvcache/chunked/device_slots.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace nvllm::kvcache {
namespace {

constexpr DeviceSlot kNone = DeviceSlots::kNone;

TEST_CASE(
    "a block that is filled and released has no home, but is found again until its slot is "
    "another's") {
  DeviceSlots slots(2, 8);
  const DeviceSlot first = slots.open(5);
  CHECK(slots.slot_of(5) == first);
  slots.filled(5);
  slots.release(5);
  CHECK(slots.slot_of(5) == kNone);
  CHECK(slots.free() == 2);
  CHECK(slots.hold(5));
  CHECK(slots.slot_of(5) == first);
  slots.release(5);
  slots.open(1);
  slots.open(2);  // in the slot of block 5, which was free for a shorter time
  CHECK(slots.slot_of(2) == first);
  slots.release(1);
  CHECK_FALSE(slots.hold(5));
}

TEST_CASE("a block that is opened again holds nothing of what it held") {
  DeviceSlots slots(3, 8);
  slots.open(5);
  slots.filled(5);
  slots.release(5);
  slots.open(5);
  slots.release(5);  // it never was full
  CHECK_FALSE(slots.hold(5));
}

TEST_CASE("a block stays until the last of its holders releases it") {
  DeviceSlots slots(2, 8);
  const DeviceSlot home = slots.open(3);
  CHECK(slots.hold(3));
  CHECK(slots.hold(3));
  slots.filled(3);
  slots.release(3);
  slots.release(3);
  CHECK(slots.slot_of(3) == home);
  CHECK(slots.free() == 1);
  slots.release(3);
  CHECK(slots.free() == 2);
}

TEST_CASE("the slot that has been free for longest is taken first") {
  DeviceSlots slots(3, 8);
  std::vector<DeviceSlot> block_map;
  for (const BlockId block : {0, 1, 2}) {
    block_map.push_back(slots.open(block));
    slots.filled(block);
  }
  for (const BlockId block : {1, 0, 2}) slots.release(block);
  CHECK(slots.open(4) == block_map[1]);
  CHECK(slots.open(5) == block_map[0]);
  CHECK(slots.open(6) == block_map[2]);
}

TEST_CASE("with as many slots as blocks what is full stays, whoever else comes and goes") {
  constexpr std::int64_t kBlocks = 16;
  DeviceSlots slots(kBlocks, kBlocks);
  std::mt19937 random(3);
  std::vector<DeviceSlot> full(kBlocks,
                               kNone);  // where blocks were filled, unless they were opened again
  std::vector<bool> held(kBlocks, false);
  for (int i = 0; i < 2000; ++i) {
    const auto block = static_cast<BlockId>(random() % kBlocks);
    const auto at = static_cast<std::size_t>(block);
    if (held[at]) {
      if (full[at] == kNone && random() % 2 == 0) {
        slots.filled(block);
        full[at] = slots.slot_of(block);
      }
      slots.release(block);
      held[at] = false;
    } else if (full[at] != kNone && random() % 2 == 0) {
      CHECK(slots.hold(block));
      CHECK(slots.slot_of(block) == full[at]);
      held[at] = true;
    } else {
      slots.open(block);
      full[at] = kNone;
      held[at] = true;
    }
  }
}

TEST_CASE("whether block_map have changed is said once") {
  DeviceSlots slots(2, 8);
  CHECK(slots.take_changed());
  slots.open(1);
  CHECK(slots.take_changed());
  CHECK_FALSE(slots.take_changed());
  slots.hold(1);
  slots.filled(1);
  slots.release(1);
  CHECK_FALSE(slots.take_changed());  // somebody holds it still
  slots.release(1);
  CHECK(slots.take_changed());
}

}  // namespace
}  // namespace nvllm::kvcache
