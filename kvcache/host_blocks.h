// HostBlocks: keys and values of blocks in pinned host memory, block by block:
// [block][layer][keys, values][token][kv_head][head_dim], so that a layer's part of a block is one copy.
//
// Pinned memory takes long to get, and the driver does little else meanwhile. So it comes in pieces from a thread of its
// own, while steps run, a little ahead of what they have come to; who needs a piece that is not there yet waits for it.
// Blocks get their places in the order in which they are asked for first, whatever their numbers.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/backend.h"
#include "kvcache/block_manager.h"
#include "kvcache/paged_storage.h"

namespace nvllm::kvcache {

// Used by one thread.
class HostBlocks {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 20;
  static constexpr std::size_t kAheadBytes = std::size_t{8} << 30;  // and one piece at least

  // An Error if the host has less memory than all of them take. Ledger: "kv cache" (pinned).
  HostBlocks(Backend& backend, const BlockShape& shape, std::int64_t blocks,
             std::size_t piece_bytes = kPieceBytes, std::size_t ahead_bytes = kAheadBytes);
  ~HostBlocks();
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  std::int64_t blocks() const { return blocks_; }
  std::size_t part_bytes() const { return part_bytes_; }  // of a block in one layer
  // A layer's part of a block. Throws why there is no memory for it.
  void* part(BlockId block, std::int64_t layer);

  // No memory is taken as long as it exists: that keeps drivers from starting copies.
  class Pause {
   public:
    explicit Pause(HostBlocks& blocks);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    HostBlocks& blocks_;
  };

 private:
  void allocate_all();  // the thread's
  Error why_no_more(std::size_t there, const char* what) const;

  Backend& backend_;
  const std::int64_t layers_, blocks_;
  const std::size_t part_bytes_;
  std::int64_t piece_blocks_ = 1;
  std::size_t ahead_ = 1;  // pieces behind the last that was asked for

  std::mutex mutex_;
  std::condition_variable news_;
  // Guarded by mutex_: pieces that have their memory, and that should have it.
  std::size_t there_ = 0, wanted_ = 0;
  bool stopping_ = false, paused_ = false, allocating_ = false;
  std::optional<Error> error_;
  std::vector<Buffer> pieces_;  // the first there_ are not touched by the thread any more
  std::size_t asked_ = 0;       // pieces that the user has asked for and knows to be there
  // By block: its place among all of them; kNoPlace. And how many have one.
  static constexpr std::int64_t kNoPlace = -1;
  std::vector<std::int64_t> places_;
  std::int64_t placed_ = 0;
  std::thread thread_;
};

}  // namespace nvllm::kvcache
