// Quest: selects the pages of a sequence that a decoded token attends to, by bounds of their keys.
//
// The bounds of a page belong to its block, under the block's number. They are recomputed, from the
// page's first token on, whenever keys are stored in the page. So they are shared with a shared
// prefix, and overwritten when another sequence gets the block.
//
// GatheredQuest, below, does the same for blocks in host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/attention/attention.h"
#include "kernels/sparse/page_selection.h"
#include "kernels/sparse/sparse_attention.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

struct QuestLimits {
  BlockShape shape;            // this rank's
  std::int64_t blocks = 0;     // of the cache
  std::int64_t sequences = 0;  // per step
  std::int64_t tokens = 0;     // per sequence
  std::int64_t budget = 2048;  // max. tokens to attend to: the published 128 pages of 16
};

// Not thread-safe; uses one stream.
class Quest {
 public:
  static constexpr std::int64_t kPageTokens = 16;

  // Allocates bytes(limits). Ledger: "quest". Throws an Error if blocks are not a multiple of
  // pages.
  Quest(Backend& backend, const QuestLimits& limits);

  static std::size_t block_bytes(const BlockShape& shape);  // of a block's bounds
  static std::size_t bytes(const QuestLimits& limits);

  // Recomputes the bounds after keys of a layer's rows have been stored. Call it before select(),
  // and before the rows' block is moved. args: the layer's attention, with `kv` and its block
  // table. block_map: the location of the blocks' keys, see KvCache::block_map().
  void update_bounds(std::int64_t layer, const kernels::Attention& args, Stream& stream,
                     const TensorView& block_map = {});

  // The pages that one row per sequence attends to (kernels/sparse/page_selection.h). Valid until
  // the next call.
  struct Selection {
    TensorView pages, counts;
  };
  Selection select(std::int64_t layer, const kernels::Attention& args, Stream& stream);

  // Runs the attention of one row per sequence over its selected pages.
  void run_attention(std::int64_t layer, const kernels::Attention& args, Stream& stream);

 private:
  TensorView bounds(std::int64_t layer) const;

  QuestLimits limits_;
  Arena arena_;
  void *bounds_, *pages_, *counts_, *workspace_;
};

// GatheredQuest: Quest over blocks in host memory. A kernel gathers the selected pages on the
// device. It finds them through tables in device memory: in a block that is being filled on the
// device, or directly in the host's pinned memory. Then the row attends to the gathered pages.
//
// Nothing here depends on lengths or addresses known only to the host, so it may run in a graph.
// The stream must already wait for all writes to host memory. Not thread-safe; uses one stream.
class GatheredQuest {
 public:
  static constexpr std::int64_t kSequences = 16;  // gathered at a time

  // quest: with the default budget or less, for at least kSequences sequences, and for all
  // sequences of a step that only this object serves. Allocates bytes(shape). Ledger: "quest"
  // (device).
  GatheredQuest(Backend& backend, Quest& quest, const BlockShape& shape);
  static std::size_t bytes(const BlockShape& shape);

  // The locations of blocks. on_device: those on the device, at block_map[block]; if that is
  // negative, at addresses[block] + offset bytes (kernels/sparse/gather_pages.h).
  struct Blocks {
    kernels::KvView on_device;
    TensorView block_map, addresses;
    std::int64_t offset = 0;
  };

  // Runs the attention of one row per sequence. `args` has its block table, and its pages' bounds
  // are up to date. one_each: 0, 1, 2 ... up to the number of sequences, or kSequences.
  void run_attention(std::int64_t layer, const kernels::Attention& args, const TensorView& one_each,
                     const Blocks& blocks, Stream& stream);

 private:
  void attend_group(std::int64_t layer, const kernels::Attention& args, const Blocks& blocks,
                    Stream& stream);

  const BlockShape shape_;
  Quest& quest_;
  Buffer memory_;  // keys, values, and the number of tokens
};

}  // namespace nvllm::kvcache
