#include "kvcache/host_tables.h"

#include <algorithm>

namespace nvllm::kvcache {

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
  nowhere_ = TensorView(words, DType::i32, {blocks});
  in_groups_ = TensorView(words + blocks, DType::i32, {blocks});
  const std::size_t bytes = 2 * nowhere_.bytes();
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

void HostTables::follow(LayerGroups& groups, Stream& stream) {
  for (; followed_ < groups.used().size(); ++followed_) {
    follow(groups.used()[followed_], groups, stream);
  }
}

void HostTables::follow(const LayerGroups::Group& group, LayerGroups& groups, Stream& stream) {
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
