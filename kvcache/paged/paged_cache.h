// PagedCache: one rank's memory of a paged KV cache, and the host blocks to which sequences can be
// swapped.
//
// A block's keys and values are contiguous, [layer][keys, values][token][kv_head][head_dim], so
// that one copy swaps it; blocks that are adjacent on both sides share a copy. The token ids of all
// blocks follow them, [blocks, block_size], int32. Penalties read them, and they are swapped
// together with their block.
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

// From a device block to a host block, or the reverse.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
};

// Not thread-safe.
class PagedCache final : public ViewCache {
 public:
  // Takes exactly blocks * shape.bytes(). Ledger: "kv cache" (device). Its contents are undefined.
  PagedCache(Backend& backend, const BlockShape& shape, std::int64_t blocks,
             std::int64_t host_blocks);

  // If device memory is host memory: makes the system allocate all of it now. `progress`, if not
  // empty, is called repeatedly.
  void commit(const std::function<void()>& progress);

  // views(): the block stride is a whole block.
  TensorView tokens() const override { return tokens_; }
  const BlockShape& shape() const { return shape_; }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t host_blocks() const { return host_blocks_; }

  // Enqueued in stream order: swap_out copies from device blocks to host blocks, swap_in back. The
  // blocks of a call are all different. Throws an Error if a block does not exist. Host blocks are
  // allocated in pieces when first used, as pinned memory is slow to allocate and most runs swap
  // nothing. Ledger: "swapped kv cache" (pinned).
  void swap_out(std::span<const BlockCopy> copies, Stream& stream);
  void swap_in(std::span<const BlockCopy> copies, Stream& stream);
  KvTraffic traffic() const override { return traffic_; }

 private:
  // Contiguous keys and values of some blocks, followed by the blocks' tokens.
  struct Place {
    unsigned char* memory;
    std::int64_t blocks;  // in there
    std::int64_t first;   // the block's index among them
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
