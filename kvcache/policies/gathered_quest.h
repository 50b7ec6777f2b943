// GatheredQuest: Quest over blocks in host memory. The pages that are chosen for a sequence's one row are brought
// together on the device, by a kernel that finds them by tables in the device's memory: in a block that is being
// filled on the device, or straight in the host's pinned memory. Then the row attends to what was gathered.
//
// Nothing of it depends on lengths or places that the host knows, so it may run in a graph. Who gathers waits,
// before that, for everything that was written to the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/attention.h"
#include "kvcache/policies/quest.h"

namespace nvllm::kvcache {

// Used by one thread, with one stream.
class GatheredQuest {
 public:
  struct Limits {
    BlockShape shape;         // this rank's
    std::int64_t blocks = 0;  // of the cache
    std::int64_t tokens = 0;  // of a sequence
  };

  // Takes bytes(limits). Ledger: "quest" (device). An Error if blocks are no multiple of pages.
  GatheredQuest(Backend& backend, const Limits& limits);
  static std::size_t bytes(const Limits& limits);
  static std::size_t block_bytes(const BlockShape& shape);  // of bytes(), for each block

  // Where blocks are. `near`: those on the device, at homes[block]; where that is negative, at addresses[block] +
  // offset bytes (kernels/gather_pages.h).
  struct Blocks {
    kernels::KvView near;
    TensorView homes, addresses;
    std::int64_t offset = 0;
  };

  // Rows of a layer have been stored at blocks.near, before any of it leaves the device: bounds of their pages.
  // `args`: the layer's attention, with its block table.
  void stored(std::int64_t layer, const kernels::Attention& args, const Blocks& blocks,
              Stream& stream);
  // The attention of one row of each sequence, which lie one behind the other. one_each: 0, 1, 2 ..., at least as
  // many as kGathered + 1, or as there are sequences + 1.
  void attend(std::int64_t layer, const kernels::Attention& args, const TensorView& one_each,
              const Blocks& blocks, Stream& stream);

  // Of `tokens` tokens in host memory, those that are gathered at most.
  static std::int64_t most_gathered(std::int64_t tokens);

 private:
  static constexpr std::int64_t kGathered = 16;  // sequences at a time

  void attend_some(std::int64_t layer, const kernels::Attention& args, const Blocks& blocks,
                   Stream& stream);

  const BlockShape shape_;
  Quest quest_;
  Buffer memory_;  // keys, values, and how many tokens they are
};

}  // namespace nvllm::kvcache
