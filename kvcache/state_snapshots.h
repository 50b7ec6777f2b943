// StateSnapshots: tracks the cached prefixes with snapshots of linear-attention states. It is pure
// bookkeeping, on rank 0.
//
// Keys and values belong to their tokens, so a sequence can start after any cached block. A state
// of linear attention depends on all tokens before it: a sequence can only start where the state
// was copied when exactly these tokens had been computed. Such a copy is a snapshot. It is stored
// on every rank's device under the same number, and is found by the content of the last block
// before it (BlockManager::Content), a number that is never used twice. So a snapshot whose block
// was evicted is not found again.
//
// Equal tokens have one snapshot. When all places are taken, a new snapshot replaces the least
// recently used. A place may be overwritten by the same step in which a sequence starts from it:
// ranks copy snapshots to sequences before a step's rows, and take new ones after them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/block_manager.h"
#include "kvcache/free_blocks.h"

namespace nvllm::kvcache {

// The index of a snapshot's place.
using SnapshotId = std::int32_t;
inline constexpr SnapshotId kNoSnapshot = kNoBlock;

// Not thread-safe. Operations cost O(1). Wrong use is a failed check.
class StateSnapshots {
 public:
  using Content = BlockManager::Content;

  explicit StateSnapshots(std::int64_t places);
  StateSnapshots(const StateSnapshots&) = delete;
  StateSnapshots& operator=(const StateSnapshots&) = delete;

  // The snapshot after the block with this content from which a sequence of the current message can
  // start; kNoSnapshot: none.
  SnapshotId find(Content content) const;
  // The same, but including one that this message takes.
  bool knows(Content content) const { return by_content_.contains(content); }
  // Records that a sequence starts from it.
  void use(SnapshotId snapshot);

  // A place for a snapshot that this message takes; kNoSnapshot: all are held.
  SnapshotId allocate();
  // The content of the last block before the snapshot is known: it can be found from now on, and
  // its place may be reused. If there already is one for this content, the place is freed.
  void publish(SnapshotId snapshot, Content content);
  // Frees the place of a snapshot that will never be published.
  void free(SnapshotId snapshot);
  // The snapshot is no longer needed, unless a sequence started from it.
  void drop_unused(Content content);
  // The blocks with these contents were evicted.
  void forget(std::span<const Content> contents);
  // The message is complete: snapshots that it takes are available to the next one.
  void end_message();

  std::int64_t total() const { return static_cast<std::int64_t>(places_.size()); }
  // Places that are neither free nor reusable: of snapshots that are not published yet.
  std::int64_t held() const { return total() - order_.size(); }

  // For tests: checks all invariants.
  void check_invariants() const;

 private:
  struct Place {
    Content content = BlockManager::kNoContent;  // if it is published
    bool unsent = false;                         // the message that takes it is not complete
    bool used = false;                           // a sequence began from it
  };

  Place& at(SnapshotId snapshot) { return places_[static_cast<std::size_t>(snapshot)]; }
  const Place& at(SnapshotId snapshot) const { return places_[static_cast<std::size_t>(snapshot)]; }
  void unpublish(SnapshotId snapshot);

  std::vector<Place> places_;
  std::unordered_map<Content, SnapshotId> by_content_;
  FreeBlocks order_;  // places that can be allocated: free ones, then the least recently used
  std::vector<SnapshotId> unsent_;
};

}  // namespace nvllm::kvcache
