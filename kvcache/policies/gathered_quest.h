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
#include "kernels/attention/attention.h"
#include "kvcache/policies/quest.h"

namespace nvllm::kvcache {

// Used by one thread, with one stream.
class GatheredQuest {
 public:
  static constexpr std::int64_t kSequences = 16;  // whose pages are gathered at a time

  // quest: whose budget is the usual one, or less; for at least kSequences, and no fewer than a step has that is attended
  // to by it alone. Takes bytes(shape). Ledger: "quest" (device).
  GatheredQuest(Backend& backend, Quest& quest, const BlockShape& shape);
  static std::size_t bytes(const BlockShape& shape);

  // Where blocks are. `near`: those on the device, at block_map[block]; where that is negative, at addresses[block] +
  // offset bytes (kernels/sparse/gather_pages.h).
  struct Blocks {
    kernels::KvView near;
    TensorView block_map, addresses;
    std::int64_t offset = 0;
  };

  // The attention of one row of each sequence, one behind the other. `args`: with its block table, the pages' bounds
  // are known. one_each: 0, 1, 2 ... up to the number of sequences, or kSequences.
  void attend(std::int64_t layer, const kernels::Attention& args, const TensorView& one_each,
              const Blocks& blocks, Stream& stream);

 private:
  void attend_some(std::int64_t layer, const kernels::Attention& args, const Blocks& blocks,
                   Stream& stream);

  const BlockShape shape_;
  Quest& quest_;
  Buffer memory_;  // keys, values, and how many tokens they are
};

}  // namespace nvllm::kvcache
