#include "kvcache/block_views.h"

namespace nvllm::kvcache {

kernels::KvView block_views(void* data, const BlockShape& shape, std::int64_t blocks,
                            std::int64_t distance) {
  const auto half = [&](unsigned char* begin) {
    TensorView view(begin, shape.dtype, {blocks, shape.block_size, shape.kv_heads, shape.head_dim});
    view.stride[0] = distance;
    return view;
  };
  auto* const keys = static_cast<unsigned char*>(data);
  return {.keys = half(keys), .values = half(keys + shape.layer_bytes() / 2), .block_table = {}};
}

}  // namespace nvllm::kvcache
