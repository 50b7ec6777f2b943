// StateSnapshots: behind which cached prefixes the states of linear attention are kept. It is
// bookkeeping alone, on rank 0.
//
// Keys and values belong to their tokens, so a sequence can begin behind any cached block. A state
// of linear attention belongs to all tokens before it: a sequence can begin only where somebody
// copied the state when exactly these tokens had been computed. Such a copy is a snapshot. Its
// place on every rank's device has a number, and it is found by what the last block before it holds
// (BlockManager::Content), a number that is never used twice. So a snapshot whose block was evicted
// is not found again.
//
// Snapshots of equal tokens are one. When all places are taken, a new one takes that of the least
// recently used. A place may be overwritten by the same step in which a sequence begins from it:
// ranks copy snapshots to sequences before a step's rows, and take new ones behind them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/block_manager.h"
#include "kvcache/free_blocks.h"

namespace nvllm::kvcache {

// The number of a place for a snapshot.
using SnapshotId = std::int32_t;
inline constexpr SnapshotId kNoSnapshot = kNoBlock;

// Not thread-safe. Operations cost O(1). Wrong use is a failed check.
class StateSnapshots {
 public:
  using Content = BlockManager::Content;

  explicit StateSnapshots(std::int64_t places);
  StateSnapshots(const StateSnapshots&) = delete;
  StateSnapshots& operator=(const StateSnapshots&) = delete;

  // The snapshot behind the block that holds this, from which a sequence of the message that is
  // being put together can begin; kNoSnapshot: there is none.
  SnapshotId find(Content content) const;
  // The same, but also one that this message takes.
  bool knows(Content content) const { return by_content_.contains(content); }
  // A sequence begins from it.
  void use(SnapshotId snapshot);

  // A place for a snapshot that this message takes; kNoSnapshot: all are held.
  SnapshotId take();
  // What the last block before the snapshot holds is known: it may be found from now on, and its
  // place may be taken. If there is one behind the same, the place is given back.
  void publish(SnapshotId snapshot, Content content);
  // It will never be published.
  void give_back(SnapshotId snapshot);
  // Nobody needs this one any more, unless some sequence began from it.
  void drop_unused(Content content);
  // The blocks that held these were evicted.
  void forget(std::span<const Content> contents);
  // The message is complete: what it takes is there for the next one.
  void end_message();

  std::int64_t total() const { return static_cast<std::int64_t>(places_.size()); }
  // Places that are neither free nor can be taken: of snapshots that are not published yet.
  std::int64_t held() const { return total() - order_.size(); }

  // For tests: everything that must always hold, or a failed check.
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
  FreeBlocks order_;  // places that can be taken: the free ones, then the least recently used
  std::vector<SnapshotId> unsent_;
};

}  // namespace nvllm::kvcache
