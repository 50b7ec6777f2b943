#include "kvcache/staged_layer.h"

#include "base/check.h"

namespace nvllm::kvcache {

StagedLayer::StagedLayer(Backend& backend, const BlockShape& shape, std::int64_t blocks)
    : backend_(backend),
      shape_(shape),
      blocks_(blocks),
      half_bytes_(static_cast<std::size_t>(shape.layer_elements()) * size_of(shape.dtype)),
      memory_(backend.allocate(MemoryKind::device, bytes(shape, blocks), "kv staging")) {}

std::size_t StagedLayer::bytes(const BlockShape& shape, std::int64_t blocks) {
  return static_cast<std::size_t>(blocks) * shape.layer_bytes();
}

void StagedLayer::put(std::int64_t number, const void* part, Stream& stream) {
  NVLLM_CHECK(number >= 0 && number < blocks_, number, " of ", blocks_, " blocks");
  auto* const to =
      static_cast<unsigned char*>(memory_.data()) + static_cast<std::size_t>(number) * half_bytes_;
  const auto* const from = static_cast<const unsigned char*>(part);
  backend_.copy(to, from, half_bytes_, stream);
  backend_.copy(to + static_cast<std::size_t>(blocks_) * half_bytes_, from + half_bytes_,
                half_bytes_, stream);
}

kernels::KvView StagedLayer::view() const {
  auto* const keys = static_cast<unsigned char*>(memory_.data());
  const auto tensor = [&](unsigned char* data) {
    return TensorView(data, shape_.dtype,
                      {1, blocks_ * shape_.block_size, shape_.kv_heads, shape_.head_dim});
  };
  return {.keys = tensor(keys),
          .values = tensor(keys + static_cast<std::size_t>(blocks_) * half_bytes_),
          .block_table = {}};
}

}  // namespace nvllm::kvcache
