// SequenceMemory: the blocks of sequences, on the device and on the host, and what step messages
// say of them. ResidentBlocks: which blocks stay on the device, where keys and values are in host
// memory.
//
// Models with linear attention have, beside blocks, states of each sequence in its slot, which
// belong to all of its computed tokens. A sequence shares a cached prefix only up to a snapshot of
// the states behind it (kvcache/state_snapshots.h). Snapshots are taken at ends of full blocks:
//   1. where a prompt leaves what others have computed before: as many of its tokens are in the
//      prefix cache, but there is no snapshot behind them. So the second prompt with a system
//      prompt leaves one behind it for all that follow;
//   2. at the end of a prompt, but for the last block, of which a token is left to be computed;
//   3. in an answer at regular distances, each in place of the one before: the next turn of a chat
//      continues from there.
// Those of 1 and 2 are at least snapshot_tokens behind the one before, those of 3 twice as much.
// A prompt's chunks end where a snapshot is to be taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"
#include "kvcache/state_snapshots.h"
#include "kvcache/window_blocks.h"
#include "runtime/scheduler/sequence.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

struct SchedulerLimits;

// For --kv-offload chunked. A sequence is told how many of its first blocks stay on the device when
// it is admitted, and they do until it leaves: all that it can ever need if that many slots are
// free, else as many as are free. A block that several sequences keep takes one slot. Not
// thread-safe.
class ResidentBlocks {
 public:
  // Slots of the device, and blocks in all. With a slot for each block nothing is counted.
  ResidentBlocks(std::int64_t slots, std::int64_t blocks);

  // Whether that many blocks could all stay.
  bool has_room_for(std::int64_t blocks) const { return all_ || blocks <= free(); }
  // Reserves slots for a sequence that has these blocks and may grow to max_blocks. Returns how
  // many of its first blocks stay: that many slots are its own from now on, whether it has the
  // blocks already or not.
  std::int64_t reserve(std::span<const kvcache::BlockId> blocks, std::int64_t max_blocks);
  // The sequence got one of the blocks that slots were reserved for; the block is new.
  void add(kvcache::BlockId block);
  // reserved: what reserve() returned.
  void release(std::span<const kvcache::BlockId> blocks, std::int64_t reserved);

  // Whether there are fewer slots than blocks; then the numbers of all slots and of the free ones.
  bool limited() const { return !all_; }
  std::int64_t slots() const { return slots_; }
  std::int64_t free() const { return slots_ - held_ - promised_; }

 private:
  std::int32_t& holders(kvcache::BlockId block) {
    return holders_[static_cast<std::size_t>(block)];
  }

  const std::int64_t slots_;
  const bool all_;
  std::int64_t held_ = 0;      // blocks with holders
  std::int64_t promised_ = 0;  // to sequences that do not have the blocks yet
  std::vector<std::int32_t> holders_;
};

// Free blocks of host memory. One that is given back can be taken for the next message only: in a
// message all copies to the host come before those from it, and no two go to one block.
class HostBlocks {
 public:
  // All of so many, the lowest to be taken first.
  explicit HostBlocks(std::int64_t count);

  std::size_t count() const { return free_.size(); }  // that can be taken
  kvcache::BlockId take();
  // All of these; they are empty afterwards.
  void give_back(std::vector<kvcache::BlockId>& blocks);
  void end_message();

  const std::vector<kvcache::BlockId>& free() const { return free_; }
  const std::vector<kvcache::BlockId>& given_back() const { return given_back_; }

 private:
  std::vector<kvcache::BlockId> free_;        // from the end
  std::vector<kvcache::BlockId> given_back_;  // since the last message
};

// Not thread-safe.
class SequenceMemory {
 public:
  explicit SequenceMemory(const SchedulerLimits& limits);

  // Whether a waiting sequence can have blocks for all tokens that are known, such that `reserved`
  // blocks stay free.
  struct Fit {
    bool enough = false;
    std::int64_t computed = 0;  // tokens that it would start with, cached or swapped
  };
  Fit fit(const Sequence& sequence, std::int64_t reserved) const;
  // Chunked: whether the device has room for all of it, or for one more sequence that does not stay
  // whole.
  bool can_be_chunked_or_resident(const Sequence& sequence) const;

  // Whether a waiting sequence can be promised blocks of the group of windows, if there is one.
  bool has_room_for_window(const Sequence& sequence) const {
    return !windows_ || windows_->has_room_for(sequence.max_length);
  }

  // Gives a waiting sequence its blocks; it must fit. Its host blocks are copied back, as far as
  // their tokens are not cached on the device. Its slot must be set: message.blocks gets its
  // blocks.
  void allocate(Sequence& sequence, StepMessage& message);
  // Blocks for so many tokens in all. False, with nothing changed: there are not enough.
  bool grow(Sequence& sequence, std::int64_t tokens, StepMessage& message);
  // Of the group of windows, if there is one. How many rows a running sequence can have blocks for
  // now: at least one.
  std::int64_t rows_in_window(const Sequence& sequence) const;
  // Blocks for so many tokens in all, which there are by rows_in_window().
  void grow_window(const Sequence& sequence, std::int64_t tokens, StepMessage& message);
  // Frees the blocks that no row of it attends to from the next one to be scheduled on. To be
  // called before any row of a step is scheduled.
  void free_before_window(const Sequence& sequence) {
    if (windows_) windows_->release_unseen(sequence.id, sequence.computed);
  }

  // Of so many rows of a prompt: how many, before its states are to be kept.
  std::int64_t rows_to_snapshot(const Sequence& sequence, std::int64_t rows) const;
  // The rows up to sequence.computed are in the message: if a snapshot is to be taken behind them,
  // it is in the message, too.
  void take_snapshot(Sequence& sequence, StepMessage& message);

  // Puts full blocks of tokens that are known and computed into the prefix cache.
  void commit(Sequence& sequence);
  // Where all layers have a window and are one group: frees the blocks that no row of it attends to
  // from the next one to be scheduled on. They may go to rows of the same step: all steps that read
  // them are enqueued before it.
  void free_unseen(const Sequence& sequence);
  // Frees its blocks; what they held may stay cached.
  void free(Sequence& sequence);
  // The same, but its computed tokens go to host blocks first. False, with nothing changed: the
  // host has not enough of them.
  bool swap_out(Sequence& sequence, StepMessage& message);
  void free_host_blocks(Sequence& sequence);
  // The message is complete; what comes next is for another one.
  void end_message();

  const kvcache::BlockManager& device() const { return device_; }
  // nullptr: there is one group.
  const kvcache::WindowBlocks* windows() const { return windows_ ? &*windows_ : nullptr; }

  // `sequences`: all that there are. For tests: everything that must always hold, or a failed
  // check.
  void check_invariants(std::span<const Sequence* const> sequences) const;

 private:
  void check_window_invariants(std::span<const Sequence* const> sequences) const;
  bool looks_up(const Sequence& sequence) const;
  // Where a waiting sequence can begin by the prefix cache, in tokens.
  struct Prefix {
    std::int64_t tokens = 0;
    kvcache::SnapshotId snapshot = kvcache::kNoSnapshot;  // behind it
    std::int64_t shared = 0;      // tokens whose keys and values are cached: at least as many
    bool shared_is_kept = false;  // a snapshot behind those is taken, perhaps by this very message
  };
  Prefix find_prefix(const Sequence& sequence) const;
  Prefix find_snapshot(const Sequence& sequence) const;
  void allocate_state(Sequence& sequence, const Prefix& prefix, StepMessage& message);
  void plan_snapshots(Sequence& sequence, const Prefix& prefix) const;
  void publish_snapshots(Sequence& sequence);
  void check_state_invariants(std::span<const Sequence* const> sequences) const;
  void allocate_window(Sequence& sequence, std::int64_t cached, StepMessage& message);
  void append_window_to_message(const Sequence& sequence, std::int64_t first_block,
                                StepMessage& message) const;
  void append_to_message(const Sequence& sequence, std::int64_t first_block,
                         StepMessage& message) const;

  kvcache::BlockManager device_;
  ResidentBlocks resident_;
  const std::int64_t max_chunked_;
  std::int64_t chunked_ = 0;  // sequences that do not stay on the device whole
  const bool prefix_caching_;
  const std::int64_t window_;
  const std::int64_t host_blocks_;
  HostBlocks free_host_;
  // The group of windows, if there is one.
  std::optional<kvcache::WindowBlocks> windows_;
  const std::int64_t host_window_blocks_;
  HostBlocks free_host_window_;
  // Linear attention.
  const bool keeps_states_;
  const std::int64_t snapshot_tokens_;                // a multiple of the block size
  std::optional<kvcache::StateSnapshots> snapshots_;  // if prefixes are cached
  const std::int64_t host_states_;
  HostBlocks free_host_states_;
};

}  // namespace nvllm::runtime
