// LayerGroups: keys and values of blocks in pinned host memory as layer-wise storage moves them, by groups of blocks that
// are neighbours: [group][layer][block in group][keys, values][token][kv_head][head_dim].
//
// The memory of a group is taken when the first of its blocks is used (host_blocks.h, whose block is a group), and a
// layer's part of it is one copy. The last group has the blocks that are left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kernels/attention/kv_view.h"
#include "kvcache/block_manager.h"
#include "kvcache/host_blocks.h"
#include "kvcache/paged_storage.h"

namespace nvllm::kvcache {

// What tests make small.
struct GroupSizes {
  std::int64_t blocks = 0;  // of a group; 0: usual_group()
  // host_blocks.h
  std::size_t piece_bytes = HostBlocks::kPieceBytes, ahead_bytes = HostBlocks::kAheadBytes;
};

// One layer of so many blocks that lie one behind the other, without a table.
kernels::KvView layer_view(unsigned char* data, const BlockShape& shape, std::int64_t blocks);

// Used by one thread.
class LayerGroups {
 public:
  // A layer's part of a group has as many bytes at least, unless that is more than the layer has. Copies of 8 MiB run at
  // 52.8 GB/s where larger ones come to 55.4 (docs/performance.md): in four times as many bytes the boundaries of
  // groups cost about 1%.
  static constexpr std::size_t kPartBytes = std::size_t{32} << 20;

  // Takes blocks * shape.kv_bytes() in the end, to the byte. Ledger: "kv cache" (pinned).
  LayerGroups(Backend& backend, const BlockShape& shape, std::int64_t blocks,
              const GroupSizes& sizes);
  // The fewest blocks whose part of a layer has kPartBytes, and no more than there are.
  static std::int64_t usual_group(const BlockShape& shape, std::int64_t blocks);

  std::int64_t group_blocks() const { return group_blocks_; }
  bool begins_group(BlockId block) const { return block % group_blocks_ == 0; }

  // A layer's part of a block; behind it lie those of the next blocks, up to the end of its group. Waits for the
  // group's memory, or throws why there is none. nullptr without KV heads.
  unsigned char* part(BlockId block, std::int64_t layer);
  // The block alone, and all blocks of its group.
  kernels::KvView block_view(BlockId block, std::int64_t layer);
  kernels::KvView group_view(BlockId block, std::int64_t layer);

  // In the order in which groups were used first: the first block and the number of blocks of each.
  struct Group {
    BlockId first = 0;
    std::int64_t blocks = 0;
  };
  std::span<const Group> used() const { return used_; }

 private:
  const BlockShape shape_;
  const std::int64_t blocks_;
  const std::size_t block_bytes_;  // of one layer
  const std::int64_t group_blocks_;
  HostBlocks host_;
  std::vector<bool> known_;  // by group: is in used_
  std::vector<Group> used_;
};

}  // namespace nvllm::kvcache
