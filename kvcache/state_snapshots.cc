#include "kvcache/state_snapshots.h"

#include <utility>

#include "base/check.h"

namespace nvllm::kvcache {

StateSnapshots::StateSnapshots(std::int64_t places)
    : places_(static_cast<std::size_t>(places)), order_(places) {}

SnapshotId StateSnapshots::find(Content content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() || at(found->second).unsent ? kNoSnapshot : found->second;
}

void StateSnapshots::use(SnapshotId snapshot) {
  NVLLM_CHECK(at(snapshot).content != BlockManager::kNoContent, "snapshot ", snapshot);
  at(snapshot).used = true;
  order_.remove(snapshot);
  order_.push_back(snapshot);
}

SnapshotId StateSnapshots::allocate() {
  const SnapshotId snapshot = order_.front();
  if (snapshot == kNoSnapshot) return kNoSnapshot;
  if (at(snapshot).content != BlockManager::kNoContent) unpublish(snapshot);
  order_.remove(snapshot);
  at(snapshot) = {.unsent = true};
  unsent_.push_back(snapshot);
  return snapshot;
}

void StateSnapshots::publish(SnapshotId snapshot, Content content) {
  NVLLM_CHECK(at(snapshot).content == BlockManager::kNoContent, "snapshot ", snapshot);
  if (const auto known = by_content_.find(content); known != by_content_.end()) {
    order_.remove(known->second);
    order_.push_back(known->second);
    return free(snapshot);
  }
  at(snapshot).content = content;
  by_content_.emplace(content, snapshot);
  order_.push_back(snapshot);
}

void StateSnapshots::free(SnapshotId snapshot) {
  NVLLM_CHECK(at(snapshot).content == BlockManager::kNoContent, "snapshot ", snapshot);
  order_.push_front(snapshot);
}

void StateSnapshots::drop_unused(Content content) {
  const auto found = by_content_.find(content);
  if (found == by_content_.end() || at(found->second).used) return;
  forget(std::span(&content, 1));
}

void StateSnapshots::forget(std::span<const Content> contents) {
  for (const Content content : contents) {
    const auto found = by_content_.find(content);
    if (found == by_content_.end()) continue;
    const SnapshotId snapshot = found->second;
    unpublish(snapshot);
    order_.remove(snapshot);
    order_.push_front(snapshot);
  }
}

void StateSnapshots::unpublish(SnapshotId snapshot) {
  by_content_.erase(std::exchange(at(snapshot).content, BlockManager::kNoContent));
}

void StateSnapshots::end_message() {
  for (const SnapshotId snapshot : unsent_) at(snapshot).unsent = false;
  unsent_.clear();
}

void StateSnapshots::check_invariants() const {
  for (const auto& [content, snapshot] : by_content_) NVLLM_CHECK_EQ(at(snapshot).content, content);
  std::int64_t published = 0;
  bool with_content = false;
  for (SnapshotId i = order_.front(); i != kNoSnapshot; i = order_.after(i)) {
    const bool has = at(i).content != BlockManager::kNoContent;
    NVLLM_CHECK(has || !with_content, "free place ", i, " waits behind a snapshot");
    with_content = has;
    published += has ? 1 : 0;
  }
  NVLLM_CHECK_EQ(published, std::ssize(by_content_));
}

}  // namespace nvllm::kvcache
