#include "kvcache/paged_storage.h"

#include "base/check.h"
#include "base/error.h"

namespace nvllm::kvcache {
namespace {

// [blocks, block_size, kv_heads, head_dim] from an address within the first block on.
TensorView cache_view(unsigned char* data, const BlockShape& shape, std::int64_t blocks) {
  TensorView view(data, shape.dtype, {blocks, shape.block_size, shape.kv_heads, shape.head_dim});
  view.stride[0] = shape.layers * 2 * shape.layer_elements();
  return view;
}

}  // namespace

std::int64_t BlockShape::layer_elements() const {
  return block_size * kv_heads * head_dim;
}

std::size_t BlockShape::kv_bytes() const {
  return static_cast<std::size_t>(layers * 2 * layer_elements()) * size_of(dtype);
}

std::size_t BlockShape::token_bytes() const {
  return static_cast<std::size_t>(block_size) * sizeof(std::int32_t);
}

std::size_t BlockShape::bytes() const {
  return kv_bytes() + token_bytes();
}

PagedStorage::PagedStorage(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                           std::int64_t host_blocks)
    : backend_(backend), shape_(shape), blocks_(blocks), host_blocks_(host_blocks) {
  NVLLM_CHECK(blocks >= 0 && host_blocks >= 0, blocks, " and ", host_blocks);
  const auto bytes = [&](std::int64_t count) {
    return static_cast<std::size_t>(count) * shape.bytes();
  };
  memory_ = backend.allocate(MemoryKind::device, bytes(blocks), "kv cache");
  host_memory_ = backend.allocate(MemoryKind::pinned, bytes(host_blocks), "swapped kv cache");

  auto* const data = static_cast<unsigned char*>(memory_.data());
  const std::size_t part = static_cast<std::size_t>(shape.layer_elements()) * size_of(shape.dtype);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    unsigned char* const keys = data + static_cast<std::size_t>(layer) * 2 * part;
    kernels::KvView view;
    view.keys = cache_view(keys, shape, blocks);
    view.values = cache_view(keys + part, shape, blocks);
    views_.push_back(view);
  }
  tokens_ = TensorView(data + static_cast<std::size_t>(blocks) * shape.kv_bytes(), DType::i32,
                       {blocks, shape.block_size});
}

PagedStorage::Side PagedStorage::device_side() const {
  return {static_cast<unsigned char*>(memory_.data()), blocks_, "device"};
}

PagedStorage::Side PagedStorage::host_side() const {
  return {static_cast<unsigned char*>(host_memory_.data()), host_blocks_, "host"};
}

void PagedStorage::swap_out(std::span<const BlockCopy> copies, Stream& stream) {
  copy(host_side(), device_side(), copies, stream);
}

void PagedStorage::swap_in(std::span<const BlockCopy> copies, Stream& stream) {
  copy(device_side(), host_side(), copies, stream);
}

void PagedStorage::copy(const Side& to, const Side& from, std::span<const BlockCopy> copies,
                        Stream& stream) {
  const auto require = [](const Side& side, BlockId block) {
    if (block < 0 || block >= side.blocks) {
      fail("swapping blocks of the KV cache: there is no ", side.name, " block ", block,
           ", they are ", side.blocks);
    }
  };
  for (const BlockCopy& each : copies) {
    require(from, each.from);
    require(to, each.to);
  }
  // `count` blocks, whose bytes begin at `start` and lie `size` apart.
  const auto copy_part = [&](const BlockCopy& first, std::size_t count, std::size_t size,
                             std::size_t to_start, std::size_t from_start) {
    backend_.copy(to.memory + to_start + static_cast<std::size_t>(first.to) * size,
                  from.memory + from_start + static_cast<std::size_t>(first.from) * size,
                  count * size, stream);
  };
  const std::size_t kv = shape_.kv_bytes();
  for (std::size_t i = 0, count = 0; i < copies.size(); i += count) {
    const BlockCopy& first = copies[i];
    count = 1;
    while (i + count < copies.size() &&
           copies[i + count].from == first.from + static_cast<BlockId>(count) &&
           copies[i + count].to == first.to + static_cast<BlockId>(count)) {
      ++count;
    }
    if (kv > 0) copy_part(first, count, kv, 0, 0);
    copy_part(first, count, shape_.token_bytes(), static_cast<std::size_t>(to.blocks) * kv,
              static_cast<std::size_t>(from.blocks) * kv);
  }
}

}  // namespace nvllm::kvcache
