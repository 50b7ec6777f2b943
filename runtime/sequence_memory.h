// SequenceMemory: the blocks of sequences, on the device and on the host, and what step messages say of
// them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"
#include "runtime/resident_blocks.h"
#include "runtime/scheduler.h"
#include "runtime/sequence.h"
#include "runtime/step.h"

namespace nvllm::runtime {

// Not thread-safe.
class SequenceMemory {
 public:
  explicit SequenceMemory(const SchedulerLimits& limits);

  // Whether a waiting sequence can have blocks for all tokens that are known, such that so many blocks stay
  // free.
  struct Room {
    bool enough = false;
    std::int64_t computed = 0;  // tokens that it would begin with, cached or swapped
  };
  Room room_for(const Sequence& sequence, std::int64_t spare_blocks) const;
  // Whether the device has room for what stays of it there, and for what it fills.
  bool place_for(const Sequence& sequence) const;

  // There must be room. The sequence's host blocks are copied back, as far as their tokens are not cached
  // on the device. Its slot must be set: message.blocks gets its blocks.
  void enter(Sequence& sequence, StepMessage& message);

  // Blocks for so many tokens in all. False, with nothing changed: there are not enough.
  bool grow(Sequence& sequence, std::int64_t tokens, StepMessage& message);

  // Tokens that are known and computed can be found by others, as far as they fill blocks.
  void commit(Sequence& sequence);

  // It gives its blocks back; what they held may stay cached.
  void leave(Sequence& sequence);
  // The same, but its computed tokens go to host blocks first. False, with nothing changed: the host has
  // not enough of them.
  bool leave_to_host(Sequence& sequence, StepMessage& message);
  void drop_host_blocks(Sequence& sequence);

  bool holds(std::int64_t tokens) const;  // whether the whole cache does
  const kvcache::BlockManager& device() const { return device_; }
  std::int64_t free_host_blocks() const;
  const ResidentBlocks& resident() const { return resident_; }

  // `sequences`: all that there are. For tests: everything that must always hold, or a failed check.
  void check_invariants(std::span<const Sequence* const> sequences) const;

 private:
  void tell(Sequence& sequence, std::int64_t first_block, StepMessage& message) const;

  kvcache::BlockManager device_;
  ResidentBlocks resident_;
  const std::int64_t most_chunked_;
  std::int64_t chunked_ = 0;  // sequences that do not stay on the device whole
  const bool look_up_;
  const std::int64_t host_blocks_;
  std::vector<kvcache::BlockId> free_host_;
};

}  // namespace nvllm::runtime
