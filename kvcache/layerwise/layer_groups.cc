#include "kvcache/layerwise/layer_groups.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {
namespace {

// A group as HostBlocks sees it: a block with more tokens.
BlockShape shape_of_group(const BlockShape& shape, std::int64_t blocks) {
  BlockShape group = shape;
  group.block_size = blocks * shape.block_size;
  return group;
}

std::int64_t group_count(std::int64_t blocks, std::int64_t group_blocks) {
  return divide_up(blocks, group_blocks);
}

std::int64_t choose_group(const BlockShape& shape, std::int64_t blocks, const GroupSizes& sizes) {
  NVLLM_CHECK(blocks > 0 && sizes.blocks >= 0, blocks, " blocks, groups of ", sizes.blocks);
  return sizes.blocks > 0 ? std::min(sizes.blocks, blocks)
                          : LayerGroups::default_group(shape, blocks);
}

}  // namespace

kernels::KvView layer_view(unsigned char* data, const BlockShape& shape, std::int64_t layer,
                           std::int64_t blocks) {
  return block_views(data, shape, layer, blocks, 2 * shape.layer_elements(layer));
}

LayerGroups::LayerGroups(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                         const GroupSizes& sizes)
    : shape_(shape),
      blocks_(blocks),
      group_blocks_(choose_group(shape, blocks, sizes)),
      host_(backend, shape_of_group(shape, group_blocks_), group_count(blocks, group_blocks_),
            sizes.piece_bytes, sizes.ahead_bytes, blocks % group_blocks_ * shape.block_size),
      known_(static_cast<std::size_t>(host_.blocks())) {}

std::int64_t LayerGroups::default_group(const BlockShape& shape, std::int64_t blocks) {
  const std::size_t block = std::max<std::size_t>(shape.layer_bytes(), 1);
  const std::size_t wanted = divide_up(kPartBytes, block);
  return std::min(static_cast<std::int64_t>(wanted), blocks);
}

unsigned char* LayerGroups::part(BlockId block, std::int64_t layer) {
  NVLLM_CHECK(block >= 0 && block < blocks_, "there is no block ", block, " of ", blocks_);
  if (shape_.layer_bytes() == 0) return nullptr;
  const auto group = static_cast<BlockId>(block / group_blocks_);
  const std::int64_t first = group * group_blocks_;
  auto* const data = static_cast<unsigned char*>(host_.part(group, layer));
  if (!known_[static_cast<std::size_t>(group)]) {
    known_[static_cast<std::size_t>(group)] = true;
    used_.push_back({static_cast<BlockId>(first), std::min(group_blocks_, blocks_ - first)});
  }
  return data + static_cast<std::size_t>(block - first) * shape_.layer_bytes(layer);
}

kernels::KvView LayerGroups::block_view(BlockId block, std::int64_t layer) {
  return layer_view(part(block, layer), shape_, layer, 1);
}

kernels::KvView LayerGroups::group_view(BlockId block, std::int64_t layer) {
  const std::int64_t first = block / group_blocks_ * group_blocks_;
  return layer_view(part(static_cast<BlockId>(first), layer), shape_, layer,
                    std::min(group_blocks_, blocks_ - first));
}

std::size_t HostTables::device_bytes(std::int64_t layers) {
  return host_bytes(layers) + 2 * sizeof(std::int32_t);
}
std::size_t HostTables::host_bytes(std::int64_t layers) {
  return static_cast<std::size_t>(layers) * sizeof(std::int64_t);
}

HostTables::HostTables(Backend& backend, std::int64_t layers, std::int64_t blocks,
                       std::int64_t group_blocks, Stream& stream)
    : backend_(backend),
      layers_(layers),
      blocks_(blocks),
      memory_(backend.allocate(MemoryKind::device,
                               static_cast<std::size_t>(blocks) * device_bytes(layers),
                               "kv cache layers")),
      staged_(backend.allocate(MemoryKind::pinned,
                               static_cast<std::size_t>(blocks) * host_bytes(layers),
                               "kv cache layers")) {
  auto* const words =
      reinterpret_cast<std::int32_t*>(static_cast<std::int64_t*>(memory_.data()) + layers * blocks);
  no_slots_ = TensorView(words, DType::i32, {blocks});
  in_groups_ = TensorView(words + blocks, DType::i32, {blocks});
  const std::size_t bytes = 2 * no_slots_.bytes();
  const Buffer staged = backend.allocate(MemoryKind::pinned, bytes, "kv cache layers");
  auto* const values = static_cast<std::int32_t*>(staged.data());
  std::fill_n(values, blocks, -1);
  for (std::int64_t b = 0; b < blocks; ++b) {
    values[blocks + b] = static_cast<std::int32_t>(b % group_blocks);
  }
  backend.copy(words, values, bytes, stream);
  stream.synchronize();
}

TensorView HostTables::addresses(std::int64_t layer) const {
  return TensorView(static_cast<std::int64_t*>(memory_.data()) + layer * blocks_, DType::i64,
                    {blocks_});
}

void HostTables::update(LayerGroups& groups, Stream& stream) {
  for (; updated_ < groups.used().size(); ++updated_) {
    update(groups.used()[updated_], groups, stream);
  }
}

void HostTables::update(const LayerGroups::Group& group, LayerGroups& groups, Stream& stream) {
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    auto* const staged = static_cast<std::int64_t*>(staged_.data()) + layer * blocks_ + group.first;
    for (std::int64_t i = 0; i < group.blocks; ++i) {
      staged[i] = reinterpret_cast<std::intptr_t>(
          groups.part(group.first + static_cast<BlockId>(i), layer));
    }
    const TensorView to = addresses(layer).rows(group.first, group.blocks);
    backend_.copy(to.data, staged, to.bytes(), stream);
  }
}

}  // namespace nvllm::kvcache
