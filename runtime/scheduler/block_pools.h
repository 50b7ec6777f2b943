// What SequenceMemory counts beside the device's blocks. ResidentBlocks: which blocks stay on the
// device, if keys and values are in host memory. HostBlockPool: free blocks in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"

namespace nvllm::runtime {

// For --kv-offload chunked. On admission it is decided how many of a sequence's first blocks stay
// on the device until it leaves: all that it can ever need if enough slots are free, otherwise as
// many as are free. A block that several sequences keep takes one slot. Not thread-safe.
class ResidentBlocks {
 public:
  // slots: of the device; blocks: in total. If there is a slot for each block, nothing is counted.
  ResidentBlocks(std::int64_t slots, std::int64_t blocks);

  // Whether this many blocks could all stay.
  bool has_room_for(std::int64_t blocks) const { return all_ || blocks <= free(); }
  // Reserves slots for a sequence that has these blocks and may grow to max_blocks. Returns how
  // many of its first blocks stay: this many slots are reserved for it, including blocks that it
  // does not have yet.
  std::int64_t reserve(std::span<const kvcache::BlockId> blocks, std::int64_t max_blocks);
  // The sequence got a new block, for which a slot is reserved.
  void add(kvcache::BlockId block);
  // reserved: what reserve() returned.
  void release(std::span<const kvcache::BlockId> blocks, std::int64_t reserved);

  // Whether there are fewer slots than blocks; then the number of all slots and of free ones.
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
  std::int64_t promised_ = 0;  // reserved for blocks that sequences do not have yet
  std::vector<std::int32_t> holders_;
};

// Free blocks in host memory. A freed block can be allocated only for the next message: within a
// message all copies to the host come before those from it, and no two may target one block.
class HostBlockPool {
 public:
  // All `count` blocks, the lowest to be allocated first.
  explicit HostBlockPool(std::int64_t count);

  std::size_t count() const { return free_.size(); }  // blocks that can be allocated
  kvcache::BlockId allocate();
  // Frees all these blocks and clears the list.
  void free(std::vector<kvcache::BlockId>& blocks);
  void end_message();

  const std::vector<kvcache::BlockId>& free_blocks() const { return free_; }
  const std::vector<kvcache::BlockId>& freed() const { return freed_; }

 private:
  std::vector<kvcache::BlockId> free_;   // allocated from the end
  std::vector<kvcache::BlockId> freed_;  // since the last message
};

}  // namespace nvllm::runtime
