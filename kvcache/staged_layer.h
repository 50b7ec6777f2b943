// StagedLayer: one layer of one sequence, put together on the device out of blocks that come from different places,
// for who must see all of it at once. Blocks are copied within the device; where they come from is free again behind
// the copy.
//
// What is in it is the next layer's or sequence's business too: a block that is in its place already need not be put
// there again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/attention/kv_view.h"
#include "kvcache/paged_storage.h"

namespace nvllm::kvcache {

// Used by one thread, with one stream.
class StagedLayer {
 public:
  // Room for `blocks` blocks. Takes bytes(shape, blocks). Ledger: "kv staging" (device).
  StagedLayer(Backend& backend, const BlockShape& shape, std::int64_t blocks);
  static std::size_t bytes(const BlockShape& shape, std::int64_t blocks);

  // The sequence's block of this number: `part` is its keys in the layer, and behind them the values.
  void put(std::int64_t number, const void* part, Stream& stream);
  // The sequence, in one piece, without a table.
  kernels::KvView view() const;

 private:
  Backend& backend_;
  const BlockShape shape_;
  const std::int64_t blocks_;
  const std::size_t half_bytes_;  // of a block's keys, or values
  Buffer memory_;                 // keys of all blocks, then values
};

}  // namespace nvllm::kvcache
