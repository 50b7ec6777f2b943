// KvCache: the keys and values of all sequences on one rank, as a forward pass asks for them, wherever they
// are kept: all on the device, or in the host's memory and on the device by turns.
//
//   cache.begin_step(step, stream);              // once; never captured
//   cache.begin_pass(stream);                    // from here on it may be captured
//   for each layer:
//     norm_rope_store(..., cache.store_view(layer, stream), ...)
//     cache.attend(layer, attention, stream);
//   cache.end_pass(stream);
//   cache.end_step(stream);
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/kv_view.h"
#include "kernels/gemm/kv_prefetch.h"
#include "kvcache/block_manager.h"
#include "kvcache/kv_traffic.h"

namespace nvllm::kvcache {

// A sequence's rows in a step, as the host knows them.
struct StepSequence {
  std::uint32_t slot = 0;           // the scheduler's, while the sequence runs
  std::span<const BlockId> blocks;  // for all tokens, these rows' included
  std::int64_t first = 0;           // position of the first row
  std::int64_t rows = 0;
  // Of the first blocks, so many stay on the device while the sequence runs, where others do not; always the same.
  std::int64_t resident = 0;
  std::int64_t to_come = 0;  // rows of it whose tokens are known, in later steps

  std::int64_t length() const { return first + rows; }
};

struct KvStep {
  std::uint64_t number = 0;  // ascending
  // In the batch's order. The batch may have more behind them, which are padding.
  std::span<const StepSequence> sequences;
  // The pass may run as a graph: one row per sequence, none of which starts. The cache decides (StepPlan::repeats).
  bool may_repeat = false;
  // A sequence begins with this step. What it shares with another one may be computed in this very step.
  bool starts = false;
};

// What begin_step() says of the pass that follows.
struct StepPlan {
  // It depends on nothing but the device's memory and `work`: it may be captured, and a graph of an earlier
  // step with the same `work` does the same.
  bool repeats = false;
  std::uint64_t work = 0;
};

// Used by one thread, with one stream for all passes. Everything that takes the stream only enqueues.
class KvCache {
 public:
  virtual ~KvCache() = default;

  // The token ids of all blocks, [blocks, block_size], int32, dense: where a pass writes them down, and
  // penalties look back at them.
  virtual TensorView tokens() const = 0;
  // Where each block's keys and values are stored in this step: [blocks], int32, numbers of blocks of
  // store_view(), -1: nowhere. data == nullptr: the block itself (kernels/pointwise/step_input.h).
  virtual TensorView block_map() const { return {}; }

  virtual StepPlan begin_step(const KvStep& step, Stream& stream) = 0;
  virtual void begin_pass(Stream& /*stream*/) {}
  // Where the rows' keys and values of a layer are to be stored, at Batch::slots.
  virtual kernels::KvView store_view(std::int64_t layer, Stream& stream) = 0;
  // The layer's attention, after its rows have been stored, by what was enqueued last. `args` is complete but for
  // `kv`, of which it has the batch's block table.
  virtual void attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) = 0;
  // What that will read, where it is known before: of sequences of such a table and such lengths.
  virtual kernels::KvAhead ahead(std::int64_t /*layer*/, TensorView /*block_table*/,
                                 TensorView /*kv_length*/) const {
    return {};
  }
  virtual void end_pass(Stream& /*stream*/) {}
  virtual void end_step(Stream& /*stream*/) {}

  // The slot's sequence has ended, or gives its slot up.
  virtual void end_sequence(std::uint32_t /*slot*/) {}

  // Since the start, of all steps that were begun.
  virtual KvTraffic traffic() const { return {}; }
};

// A cache of nothing but views, one per layer: all of it is on the device, and whoever has the memory knows
// what is where.
class ViewCache : public KvCache {
 public:
  ViewCache() = default;
  explicit ViewCache(std::vector<kernels::KvView> views) : views_(std::move(views)) {}

  std::span<const kernels::KvView> views() const { return views_; }  // without tables
  TensorView tokens() const override { return {}; }
  StepPlan begin_step(const KvStep& step, Stream&) override {
    const auto more =
        std::ranges::find_if(step.sequences, [](const StepSequence& s) { return s.rows != 1; });
    singles_ = more - step.sequences.begin();
    starts_ = step.starts;
    return {.repeats = step.may_repeat, .work = 0};
  }
  kernels::KvView store_view(std::int64_t layer, Stream&) override {
    return views_.at(static_cast<std::size_t>(layer));
  }
  void attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) override {
    kernels::Attention all = args;
    all.kv = store_view(layer, stream);
    all.kv.block_table = args.kv.block_table;
    all.only_rows_are_new = !starts_;
    // Padding and captured passes have nothing but single rows.
    kernels::attention(all, args.max_query_rows > 1 ? singles_ : 0, stream);
  }

  kernels::KvAhead ahead(std::int64_t layer, TensorView block_table,
                         TensorView kv_length) const override {
    kernels::KvAhead all{.kv = views_.at(static_cast<std::size_t>(layer)), .kv_length = kv_length};
    all.kv.block_table = block_table;
    return all;
  }

 protected:
  std::vector<kernels::KvView> views_;

 private:
  std::int64_t singles_ = 0;  // the step's first sequences that have one row each
  bool starts_ = false;       // KvStep's
};

}  // namespace nvllm::kvcache
