// A layer's keys and values of blocks that lie at equal distances, as attention and stores take them.
#pragma once

#include <cstdint>

#include "kernels/attention/kv_view.h"
#include "kvcache/paged_storage.h"

namespace nvllm::kvcache {

// data: the layer's keys of the first block, its values behind them. distance: of a block from the next one, in
// elements. Without a table.
kernels::KvView block_views(void* data, const BlockShape& shape, std::int64_t blocks,
                            std::int64_t distance);

}  // namespace nvllm::kvcache
