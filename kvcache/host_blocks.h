// HostBlocks: keys and values of blocks in pinned host memory, block by block: [block][layer][keys,
// values][token][kv_head][head_dim], so that a layer's part of a block is one copy.
//
// Pinned memory takes long to get, and the driver does little else meanwhile. So it comes in pieces
// from a thread of its own, while steps run, a little ahead of what they have come to; who needs a
// piece that is not there yet waits for it. A piece has as many whole blocks as it has room for,
// and one at least. Blocks get their places in the order in which they are asked for first,
// whatever their numbers. A last block that is shorter than the others has a piece of its own, so
// that nobody's place depends on when it comes.
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
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

// Used by one thread.
class HostBlocks {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 20;
  static constexpr std::size_t kAheadBytes = std::size_t{8} << 30;  // and one piece at least

  // last_tokens: of the last block, if it has fewer than the others; 0: it is like them. An Error
  // if the host has less memory than all of them take. Ledger: "kv cache" (pinned).
  HostBlocks(Backend& backend, const BlockShape& shape, std::int64_t blocks,
             std::size_t piece_bytes = kPieceBytes, std::size_t ahead_bytes = kAheadBytes,
             std::int64_t last_tokens = 0);
  ~HostBlocks();
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  std::int64_t blocks() const { return blocks_; }
  // Of a block in one layer; of a shorter last one it is less.
  std::size_t part_bytes() const { return part_bytes_; }
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
  // The one that is to have its memory next, if there is any. With mutex_.
  std::optional<std::size_t> next_piece() const;
  std::size_t all_bytes() const;
  std::size_t bytes_of(std::size_t piece) const;
  Error why_no_more(std::size_t there, const char* what) const;
  void* last_part(std::int64_t layer);

  Backend& backend_;
  const std::int64_t layers_, blocks_;
  const std::int64_t alike_;  // blocks, the first ones, that have as many tokens each
  const std::size_t part_bytes_, last_part_bytes_;
  std::int64_t piece_blocks_ = 1;
  std::size_t alike_pieces_ = 0;  // pieces of theirs; behind them that of a shorter last one
  std::size_t ahead_ = 1;         // pieces behind the last that was asked for

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_: pieces that have their memory, and that should have it.
  std::size_t there_ = 0, wanted_ = 0;
  bool last_there_ = false, last_wanted_ = false;  // that of a shorter last block
  bool stopping_ = false, paused_ = false, allocating_ = false;
  std::optional<Error> error_;
  // The first there_, and that of the last block if it is there, are not touched by the thread any
  // more.
  std::vector<Buffer> pieces_;
  // Pieces that the user has asked for and knows to be there.
  std::size_t available_ = 0;
  bool last_asked_ = false;
  // By block: its place among all of them; kUnassigned. And how many have one.
  static constexpr std::int64_t kUnassigned = -1;
  std::vector<std::int64_t> places_;
  std::int64_t placed_ = 0;
  std::thread thread_;
};

}  // namespace nvllm::kvcache
