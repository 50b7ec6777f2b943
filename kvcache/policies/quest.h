// Quest: which pages of a sequence the token that is decoded attends to, by bounds of their keys.
//
// The bounds of a page belong to the block that the page is in, under the block's number, and are computed anew
// whenever keys are stored in the page: out of the page's own keys, from its first token on. So they come
// and go with blocks: shared with the prefix that is shared, void when the block goes to another sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/backend.h"
#include "kernels/attention/attention.h"
#include "kernels/sparse/sparse_attention.h"
#include "kernels/sparse/page_selection.h"
#include "kvcache/paged_storage.h"

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

  // Keys of a layer's rows have been stored: to be called before anybody chooses, and before their block goes
  // anywhere. `args`: the layer's attention, `kv` with its block table.
  // block_map: where blocks' keys are, as of KvCache::block_map().
  void stored(std::int64_t layer, const kernels::Attention& args, Stream& stream,
              const TensorView& block_map = {});

  // The pages that one row per sequence attends to (kernels/sparse/page_selection.h). They stay until the next call.
  struct Choice {
    TensorView pages, counts;
  };
  Choice choose(std::int64_t layer, const kernels::Attention& args, Stream& stream);

  // The attention of one row per sequence to the pages that are chosen for it.
  void attend(std::int64_t layer, const kernels::Attention& args, Stream& stream);

 private:
  TensorView bounds(std::int64_t layer) const;

  QuestLimits limits_;
  Arena arena_;
  void *bounds_, *pages_, *counts_, *workspace_;
};

}  // namespace nvllm::kvcache
