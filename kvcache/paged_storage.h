// PagedStorage: one rank's memory of a paged KV cache, and the host's blocks that sequences can be swapped to.
//
// A block is one piece of memory, [layer][keys, values][token][kv_head][head_dim], so that it moves to or
// from the host in one copy. The token ids of a block lie beside it: [blocks, block_size], int32. They are
// what penalties look back at, and travel with the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kernels/kv_view.h"
#include "kvcache/block_manager.h"

namespace nvllm::kvcache {

struct BlockShape {
  std::int64_t layers = 0;
  std::int64_t block_size = 0;  // tokens
  std::int64_t kv_heads = 0;    // this rank's; may be 0
  std::int64_t head_dim = 0;
  DType dtype = DType::bf16;

  std::size_t bytes() const;  // of a block on this rank, token ids included
};

struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
};

class PagedStorage {
 public:
  // Ledger: "kv cache" (device) and "swapped kv cache" (pinned).
  PagedStorage(Backend& backend, const BlockShape& shape, std::int64_t blocks,
               std::int64_t host_blocks);

  std::span<const kernels::KvView> views() const {
    return views_;
  }                                              // of each layer, without tables
  TensorView tokens() const { return tokens_; }  // [blocks, block_size], int32
  std::int64_t blocks() const { return blocks_; }
  std::int64_t host_blocks() const { return host_blocks_; }

  // Enqueued; between device blocks and host blocks.
  void swap_out(std::span<const BlockCopy> copies, Stream& stream);
  void swap_in(std::span<const BlockCopy> copies, Stream& stream);

 private:
  Backend& backend_;
  BlockShape shape_;
  std::int64_t blocks_;
  std::int64_t host_blocks_;
  Buffer memory_, host_memory_;
  TensorView tokens_;
  std::vector<kernels::KvView> views_;
};

}  // namespace nvllm::kvcache
