// HostBlocks: keys and values of blocks in pinned host memory, laid out block by block as
// [block][layer][keys, values][token][kv_head][head_dim], so that one copy moves a layer's part.
//
// Pinning memory is slow, and blocks most other driver calls. A thread therefore pins it in pieces
// of several whole blocks while steps run, somewhat ahead of their use. A step that needs a piece
// that is not pinned yet waits for it.
//
// Blocks get memory in the order of their first use, whatever their numbers are. If the last block
// is shorter than the others it has a separate piece, so that the addresses of the others do not
// depend on when it is used.
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

// Not thread-safe.
class HostBlocks {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 20;
  static constexpr std::size_t kAheadBytes = std::size_t{8} << 30;  // and at least one piece

  // last_tokens: of the last block, if shorter than the others; 0: it is not. Throws an Error if
  // the host has too little memory for all blocks. Ledger: "kv cache" (pinned).
  HostBlocks(Backend& backend, const BlockShape& shape, std::int64_t blocks,
             std::size_t piece_bytes = kPieceBytes, std::size_t ahead_bytes = kAheadBytes,
             std::int64_t last_tokens = 0);
  ~HostBlocks();
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  std::int64_t blocks() const { return blocks_; }
  // Bytes of a block in its largest layer; a shorter last block has fewer.
  std::size_t part_bytes() const { return shape_.layer_bytes(); }
  // A layer's part of a block. Throws an Error if its memory could not be allocated.
  void* part(BlockId block, std::int64_t layer);

  // Stops allocation while it exists, since that delays the driver's copies.
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
  void allocate_all();  // runs in the thread
  // The piece to allocate next, if any. Call it with mutex_ held.
  std::optional<std::size_t> next_piece() const;
  std::size_t all_bytes() const;
  std::size_t bytes_of(std::size_t piece) const;
  Error why_no_more(std::size_t there, const char* what) const;
  void* last_part(std::int64_t layer);

  Backend& backend_;
  const BlockShape shape_, last_shape_;
  const std::int64_t blocks_;
  const std::int64_t full_size_;  // the number of leading blocks with the full size
  std::int64_t piece_blocks_ = 1;
  std::size_t full_pieces_ = 0;  // pieces of full-size blocks; that of a shorter last block follows
  std::size_t ahead_ = 1;        // how many pieces to allocate ahead of the last one in use

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_: the numbers of allocated and of requested pieces.
  std::size_t there_ = 0, wanted_ = 0;
  bool last_there_ = false, last_wanted_ = false;  // the same for a shorter last block's piece
  bool stopping_ = false, paused_ = false, allocating_ = false;
  std::optional<Error> error_;
  // The thread no longer touches the first there_ pieces, nor the last block's once allocated.
  std::vector<Buffer> pieces_;
  // Pieces that the using thread knows to be allocated.
  std::size_t available_ = 0;
  bool last_available_ = false;
  // By block: its index in memory, or kUnassigned; and the number of assigned indices.
  static constexpr std::int64_t kUnassigned = -1;
  std::vector<std::int64_t> index_;
  std::int64_t assigned_ = 0;
  std::thread thread_;
};

}  // namespace nvllm::kvcache
