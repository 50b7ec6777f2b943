// LayerGroups: keys and values in pinned host memory as a LayerwiseCache moves them, in groups of
// adjacent blocks: [group][layer][block in group][keys, values][token][kv_head][head_dim]. One copy
// moves a layer's part of a group. A group's memory is allocated when its first block is used
// (host_blocks.h, whose "block" is a group here). The last group holds the remaining blocks.
// HostTables holds the addresses of these blocks for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"
#include "kvcache/block_manager.h"
#include "kvcache/host_blocks.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

// Tests use small values.
struct GroupSizes {
  std::int64_t blocks = 0;  // of a group; 0: default_group()
  // host_blocks.h
  std::size_t piece_bytes = HostBlocks::kPieceBytes, ahead_bytes = HostBlocks::kAheadBytes;
};

// A view of one layer of contiguous blocks, without a block table.
kernels::KvView layer_view(unsigned char* data, const BlockShape& shape, std::int64_t layer,
                           std::int64_t blocks);

// Not thread-safe.
class LayerGroups {
 public:
  // A layer's part of a group has at least this many bytes, unless the layer has fewer. Copies of 8
  // MiB run at 52.8 GB/s where larger ones reach 55.4 (docs/performance.md); with four times as
  // many bytes the boundaries of groups cost about 1%.
  static constexpr std::size_t kPartBytes = std::size_t{32} << 20;

  // Takes exactly blocks * shape.kv_bytes() once all blocks have been used. Ledger: "kv cache"
  // (pinned).
  LayerGroups(Backend& backend, const BlockShape& shape, std::int64_t blocks,
              const GroupSizes& sizes);
  // The smallest number of blocks whose part of a layer has kPartBytes, at most `blocks`.
  static std::int64_t default_group(const BlockShape& shape, std::int64_t blocks);

  std::int64_t group_blocks() const { return group_blocks_; }
  bool begins_group(BlockId block) const { return block % group_blocks_ == 0; }

  // A layer's part of a block; those of the next blocks of its group follow. Waits for the group's
  // memory, or throws an Error if allocation failed. nullptr without KV heads.
  unsigned char* part(BlockId block, std::int64_t layer);
  // The block alone, and all blocks of its group.
  kernels::KvView block_view(BlockId block, std::int64_t layer);
  kernels::KvView group_view(BlockId block, std::int64_t layer);

  // The groups used so far, in order of first use.
  struct Group {
    BlockId first = 0;
    std::int64_t blocks = 0;
  };
  std::span<const Group> used() const { return used_; }

 private:
  const BlockShape shape_;
  const std::int64_t blocks_;
  const std::int64_t group_blocks_;
  HostBlocks host_;
  std::vector<bool> known_;  // by group: is in used_
  std::vector<Group> used_;
};

// HostTables: device tables of the addresses of LayerGroups' blocks, for kernels that read them
// from host memory. Not thread-safe.
class HostTables {
 public:
  // Uses the stream and waits for it. Ledger: "kv cache layers" (device, pinned).
  HostTables(Backend& backend, std::int64_t layers, std::int64_t blocks, std::int64_t group_blocks,
             Stream& stream);

  // Bytes per block.
  static std::size_t device_bytes(std::int64_t layers);
  static std::size_t host_bytes(std::int64_t layers);

  // Enqueues the addresses of all groups that were first used since the last call.
  void update(LayerGroups& groups, Stream& stream);

  // Tables by block. addresses: of the block in the layer, int64; undefined until its group is
  // used.
  TensorView addresses(std::int64_t layer) const;
  TensorView no_slots() const { return no_slots_; }    // int32: -1
  TensorView in_groups() const { return in_groups_; }  // int32: the block's index in its group

 private:
  void update(const LayerGroups::Group& group, LayerGroups& groups, Stream& stream);

  Backend& backend_;
  const std::int64_t layers_, blocks_;
  Buffer memory_;  // addresses, [layer][block]; the other two
  Buffer staged_;  // addresses; each is written once, so no copy must be waited for
  TensorView no_slots_, in_groups_;
  std::size_t updated_ = 0;  // of LayerGroups::used()
};

}  // namespace nvllm::kvcache
