#include "kvcache/state_snapshots.h"

#include <doctest/doctest.h>

#include <array>

namespace nvllm::kvcache {
namespace {

using Content = StateSnapshots::Content;

// Taken and published in a message of its own.
SnapshotId add(StateSnapshots& snapshots, Content content) {
  const SnapshotId place = snapshots.allocate();
  snapshots.publish(place, content);
  snapshots.end_message();
  snapshots.check_invariants();
  return place;
}

TEST_CASE("a snapshot is found behind its content, from the next message on") {
  StateSnapshots snapshots(2);
  const SnapshotId place = snapshots.allocate();
  snapshots.publish(place, 7);
  CHECK(snapshots.find(7) == kNoSnapshot);
  CHECK(snapshots.knows(7));
  snapshots.end_message();
  CHECK(snapshots.find(7) == place);
  CHECK(snapshots.find(8) == kNoSnapshot);
  CHECK_FALSE(snapshots.knows(8));
}

TEST_CASE("the least recently used gives its place away") {
  StateSnapshots snapshots(3);
  const SnapshotId first = add(snapshots, 1), second = add(snapshots, 2);
  add(snapshots, 3);
  snapshots.use(first);
  CHECK(add(snapshots, 4) == second);
  CHECK(snapshots.find(2) == kNoSnapshot);
  CHECK(snapshots.find(1) == first);
}

TEST_CASE("a place whose content is not known yet is not taken") {
  StateSnapshots snapshots(1);
  const SnapshotId place = snapshots.allocate();
  CHECK(snapshots.held() == 1);
  CHECK(snapshots.allocate() == kNoSnapshot);
  snapshots.end_message();
  CHECK(snapshots.allocate() == kNoSnapshot);
  snapshots.free(place);
  CHECK(snapshots.held() == 0);
  CHECK(snapshots.allocate() == place);
}

TEST_CASE("of two snapshots of equal tokens the first stays") {
  StateSnapshots snapshots(2);
  const SnapshotId first = add(snapshots, 5);
  const SnapshotId second = add(snapshots, 5);
  CHECK(second != first);
  CHECK(snapshots.find(5) == first);
  CHECK(add(snapshots, 6) == second);
  CHECK(snapshots.find(5) == first);
}

TEST_CASE("what was evicted is forgotten, and its place is the next to be taken") {
  StateSnapshots snapshots(3);
  add(snapshots, 1);
  const SnapshotId second = add(snapshots, 2);
  snapshots.use(second);
  snapshots.forget(std::array<Content, 2>{2, 99});
  snapshots.check_invariants();
  CHECK(snapshots.find(2) == kNoSnapshot);
  CHECK(add(snapshots, 3) == second);
}

TEST_CASE("a snapshot that a sequence began from is not dropped with its answer's next one") {
  StateSnapshots snapshots(2);
  const SnapshotId used = add(snapshots, 1);
  add(snapshots, 2);
  snapshots.use(used);
  snapshots.drop_unused(1);
  snapshots.drop_unused(2);
  CHECK(snapshots.find(1) == used);
  CHECK(snapshots.find(2) == kNoSnapshot);
}

}  // namespace
}  // namespace nvllm::kvcache
