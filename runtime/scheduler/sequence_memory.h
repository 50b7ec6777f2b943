// SequenceMemory: the blocks of sequences on the device and on the host, and the corresponding
// parts of step messages.
//
// In models with linear attention, each sequence also has states in its slot, which cover all of
// its computed tokens. A sequence shares a cached prefix only up to a snapshot of the states at its
// end (kvcache/state_snapshots.h). Snapshots are taken at ends of full blocks:
//   1. where a prompt leaves a prefix that others have computed: these tokens are in the prefix
//      cache, but have no snapshot yet. So the second prompt with a system prompt saves one
//      for all later ones;
//   2. at the end of a prompt, except the last block, of which a token must be left to compute;
//   3. in generated tokens at regular distances, each replacing the previous one: the next turn
//      of a chat continues from there.
// Snapshots of kinds 1 and 2 are at least snapshot_tokens after the previous one, those of kind 3
// twice as much. A prompt's chunks end where a snapshot is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"
#include "kvcache/state_snapshots.h"
#include "kvcache/window_blocks.h"
#include "runtime/scheduler/block_pools.h"
#include "runtime/scheduler/sequence.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

struct SchedulerLimits;

// Not thread-safe.
class SequenceMemory {
 public:
  explicit SequenceMemory(const SchedulerLimits& limits);

  // Whether a waiting sequence can get blocks for all known tokens, such that `reserved` blocks
  // stay free.
  struct Fit {
    bool enough = false;
    std::int64_t computed = 0;  // tokens with which it would start, cached or swapped
  };
  Fit fit(const Sequence& sequence, std::int64_t reserved) const;
  // Chunked mode: whether the device has slots for all of it, or may run one more sequence that is
  // not entirely there.
  bool can_be_chunked_or_resident(const Sequence& sequence) const;

  // Whether blocks of the window group can be promised to a waiting sequence, if there is such a
  // group.
  bool has_room_for_window(const Sequence& sequence) const {
    return !windows_ || windows_->has_room_for(sequence.max_length);
  }

  // Allocates a waiting sequence's blocks; it must fit. Its host blocks are copied back, unless
  // their tokens are cached on the device. Its slot must be set: message.blocks gets its blocks.
  void allocate(Sequence& sequence, StepMessage& message);
  // Allocates blocks up to `tokens` tokens in total. False, without changes: not enough are free.
  bool grow(Sequence& sequence, std::int64_t tokens, StepMessage& message);
  // Window group, if there is one: how many rows a running sequence can get blocks for now; at
  // least one.
  std::int64_t rows_in_window(const Sequence& sequence) const;
  // Allocates blocks up to `tokens` tokens in total, within the limit of rows_in_window().
  void grow_window(const Sequence& sequence, std::int64_t tokens, StepMessage& message);
  // Frees the blocks that no row attends to from the next scheduled row on. Call before any row of
  // a step is scheduled.
  void free_before_window(const Sequence& sequence) {
    if (windows_) windows_->release_unseen(sequence.id, sequence.computed);
  }

  // Limits `rows` prefill rows to those before the next snapshot of states.
  std::int64_t rows_to_snapshot(const Sequence& sequence, std::int64_t rows) const;
  // The rows up to sequence.computed are in the message: if a snapshot is due after them, adds it
  // to the message.
  void take_snapshot(Sequence& sequence, StepMessage& message);

  // Adds full blocks of tokens that are known and computed to the prefix cache.
  void commit(Sequence& sequence);
  // If all layers have a window and are one group: frees the blocks that no row attends to from the
  // next scheduled row on. Rows of the same step may reuse them: all steps that read them are
  // enqueued earlier.
  void free_unseen(const Sequence& sequence);
  // Frees its blocks; their contents may stay cached.
  void free(Sequence& sequence);
  // Also frees its blocks, but first copies its computed tokens to host blocks. False, without
  // changes: not enough host blocks are free.
  bool swap_out(Sequence& sequence, StepMessage& message);
  void free_host_blocks(Sequence& sequence);
  // The message is complete; later changes are for the next one.
  void end_message();

  const kvcache::BlockManager& device() const { return device_; }
  // nullptr: there is one group.
  const kvcache::WindowBlocks* windows() const { return windows_ ? &*windows_ : nullptr; }

  // `sequences`: all sequences. For tests: fails a CHECK if an invariant is broken.
  void check_invariants(std::span<const Sequence* const> sequences) const;

 private:
  void check_window_invariants(std::span<const Sequence* const> sequences) const;
  bool looks_up(const Sequence& sequence) const;
  // Where a waiting sequence can start because of the prefix cache, in tokens.
  struct Prefix {
    std::int64_t tokens = 0;
    kvcache::SnapshotId snapshot = kvcache::kNoSnapshot;  // at the end of these tokens
    std::int64_t shared = 0;      // tokens with cached keys and values: at least `tokens`
    bool shared_is_kept = false;  // a snapshot at their end is being saved, perhaps by this message
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
  std::int64_t chunked_ = 0;  // running sequences that are not entirely on the device
  const bool prefix_caching_;
  const std::int64_t window_;
  const std::int64_t host_blocks_;
  HostBlockPool free_host_;
  // The group of windows, if there is one.
  std::optional<kvcache::WindowBlocks> windows_;
  const std::int64_t host_window_blocks_;
  HostBlockPool free_host_window_;
  // Linear attention.
  const bool keeps_states_;
  const std::int64_t snapshot_tokens_;                // a multiple of the block size
  std::optional<kvcache::StateSnapshots> snapshots_;  // if prefixes are cached
  const std::int64_t host_states_;
  HostBlockPool free_host_states_;
};

}  // namespace nvllm::runtime
