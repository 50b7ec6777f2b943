// Quest: which pages of a sequence the token that is decoded attends to, by bounds of their keys.
//
// The bounds of a page belong to the block that the page is in, under the block's number, and are
// computed anew whenever keys are stored in the page: out of the page's own keys, from its first
// token on. So they come and go with blocks: shared with the prefix that is shared, void when the
// block goes to another sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/attention.h"
#include "kernels/page_attention.h"
#include "kernels/select_pages.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

struct QuestLimits {
  BlockShape shape;            // this rank's
  std::int64_t blocks = 0;     // of the cache
  std::int64_t sequences = 0;  // of a step
  std::int64_t tokens = 0;     // of a sequence
  std::int64_t budget =
      2048;  // tokens that are attended to, at most: the published 128 pages of 16
};

// Used by one thread, with one stream.
class Quest {
 public:
  static constexpr std::int64_t kPageTokens = 16;

  // Takes bytes(limits). Ledger: "quest". An Error if blocks are no multiple of pages.
  Quest(Backend& backend, const QuestLimits& limits);

  static std::size_t block_bytes(const BlockShape& shape);  // of the bounds of a block
  static std::size_t bytes(const QuestLimits& limits);

  // Keys of a layer's rows have been stored: to be called before anybody chooses, and before their
  // block goes anywhere. `args`: the layer's attention, `kv` with its block table. block_map: where
  // blocks' keys are, as of KvCache::block_map().
  void update_bounds(std::int64_t layer, const kernels::Attention& args, Stream& stream,
                     const TensorView& block_map = {});

  // The pages that one row per sequence attends to (kernels/select_pages.h). They stay until the
  // next call.
  struct Selection {
    TensorView pages, counts;
  };
  Selection select_pages(std::int64_t layer, const kernels::Attention& args, Stream& stream);

  // The attention of one row per sequence to the pages that are chosen for it.
  void run_attention(std::int64_t layer, const kernels::Attention& args, Stream& stream);

 private:
  TensorView bounds(std::int64_t layer) const;

  QuestLimits limits_;
  Arena arena_;
  void *bounds_, *pages_, *counts_, *workspace_;
};

// GatheredQuest: Quest over blocks in host memory. The pages that are chosen for a sequence's one
// row are brought run_length on the device, by a kernel that finds them by tables in the device's
// memory: in a block that is being filled on the device, or straight in the host's pinned memory.
// Then the row attends to what was gathered.
//
// Nothing of it depends on lengths or places that the host knows, so it may run in a graph. Who
// gathers waits, before that, for everything that was written to the host's memory. Used by one
// thread, with one stream.
class GatheredQuest {
 public:
  static constexpr std::int64_t kSequences = 16;  // whose pages are gathered at a time

  // quest: whose budget is the usual one, or less; for at least kSequences, and no fewer than a
  // step has that is attended to by it alone. Takes bytes(shape). Ledger: "quest" (device).
  GatheredQuest(Backend& backend, Quest& quest, const BlockShape& shape);
  static std::size_t bytes(const BlockShape& shape);

  // Where blocks are. `near`: those on the device, at block_map[block]; where that is negative, at
  // addresses[block] + offset bytes (kernels/gather_pages.h).
  struct Blocks {
    kernels::KvView on_device;
    TensorView block_map, addresses;
    std::int64_t offset = 0;
  };

  // The attention of one row of each sequence, one behind the other. `args`: with its block table,
  // the pages' bounds are known. one_each: 0, 1, 2 ... up to the number of sequences, or
  // kSequences.
  void run_attention(std::int64_t layer, const kernels::Attention& args, const TensorView& one_each,
                     const Blocks& blocks, Stream& stream);

 private:
  void attend_group(std::int64_t layer, const kernels::Attention& args, const Blocks& blocks,
                    Stream& stream);

  const BlockShape shape_;
  Quest& quest_;
  Buffer memory_;  // keys, values, and how many tokens they are
};

}  // namespace nvllm::kvcache
