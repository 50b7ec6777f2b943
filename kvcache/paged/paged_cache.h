// PagedCache: one rank's memory of a paged KV cache, and the host blocks to which sequences can be
// swapped.
//
// A block's keys and values are one piece of memory, [layer][keys, values][token][kv_head]
// [head_dim], so that one copy swaps it; blocks that are neighbours on both sides share a copy. The
// token ids of all blocks follow behind them, [blocks, block_size], int32. Penalties read them, and
// they are swapped together with their block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kernels/attention/kv_view.h"
#include "kvcache/block_manager.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

// Of a device's block to a host's, or the other way round.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
};

// Used by one thread.
class PagedCache final : public ViewCache {
 public:
  // Takes blocks * shape.bytes(), to the byte. Ledger: "kv cache" (device). What is in it is
  // undefined.
  PagedCache(Backend& backend, const BlockShape& shape, std::int64_t blocks,
             std::int64_t host_blocks);

  // Where the device's memory is the host's: has the system provide all of it now. `progress` is
  // called now and then, if it is not empty.
  void commit(const std::function<void()>& progress);

  // views(): blocks lie a whole block's elements apart.
  TensorView tokens() const override { return tokens_; }
  const BlockShape& shape() const { return shape_; }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t host_blocks() const { return host_blocks_; }

  // Enqueued, in the stream's order: swap_out copies from device blocks to host blocks, swap_in
  // back. The blocks of a call are all different. An Error if there is no such block. The host's
  // blocks are allocated in pieces when they are first swapped to, as pinned memory takes long to
  // get and most runs swap nothing. Ledger: "swapped kv cache" (pinned).
  void swap_out(std::span<const BlockCopy> copies, Stream& stream);
  void swap_in(std::span<const BlockCopy> copies, Stream& stream);
  KvTraffic traffic() const override { return traffic_; }

 private:
  // Keys and values of some blocks that lie together, and behind them the blocks' tokens.
  struct Place {
    unsigned char* memory;
    std::int64_t blocks;  // in there
    std::int64_t first;   // the block's number among them
  };
  Place on_device(BlockId block) const;
  Place on_host(BlockId block) const;
  void make_host_piece(BlockId block);
  void check_blocks(const BlockCopy& copy, bool out) const;
  std::size_t run_length(std::span<const BlockCopy> copies, bool out) const;
  void copy(const Place& to, const Place& from, std::size_t count, Stream& stream);

  Backend& backend_;
  BlockShape shape_;
  std::int64_t blocks_;
  std::int64_t host_blocks_;
  std::int64_t piece_blocks_;
  Buffer memory_;
  std::vector<Buffer> host_pieces_;  // of piece_blocks_ each, the last of fewer; empty until needed
  TensorView tokens_;
  KvTraffic traffic_;
};

}  // namespace nvllm::kvcache
