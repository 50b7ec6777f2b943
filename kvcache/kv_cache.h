// KvCache: the keys and values of all sequences on one rank, as used by a forward pass, wherever
// they are stored: all on the device (kvcache/paged), or in host memory and only partly on the
// device (kvcache/chunked, kvcache/layerwise). kvcache/policies wraps one of these for sparse
// attention.
//
//   cache.begin_step(step, stream);              // once per step; never captured
//   cache.begin_pass(stream);                    // from here on a CUDA graph may capture the work
//   for each layer:
//     norm_rope_store(..., cache.store_view(layer, stream), ...)
//     cache.run_attention(layer, attention, decode_sequences, stream);
//   cache.end_pass(stream);
//   cache.end_step(stream);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/kv_view.h"
#include "kernels/gemm/kv_prefetch.h"
#include "kvcache/block_manager.h"

namespace nvllm::kvcache {

// The layout of a block on this rank: [layer][keys, values][token][kv_head][head_dim].
struct BlockShape {
  std::int64_t layers = 0;
  std::int64_t block_size = 0;  // tokens
  std::int64_t kv_heads = 0;    // this rank's; may be 0
  std::int64_t head_dim = 0;
  DType dtype = DType::bf16;  // u8: E4m3 (device/e4m3.h)
  // By layer, if layers differ: kv_heads and head_dim are then those of the layer with the most
  // elements. Empty: all layers are alike.
  struct Heads {
    std::int64_t kv_heads = 0, head_dim = 0;
    bool operator==(const Heads&) const = default;
  };
  std::vector<Heads> by_layer{};

  Heads heads_of(std::int64_t layer) const {
    return by_layer.empty() ? Heads{kv_heads, head_dim} : by_layer[static_cast<std::size_t>(layer)];
  }
  // The elements of a block's keys in a layer; by default in the largest.
  std::int64_t layer_elements() const { return block_size * kv_heads * head_dim; }
  std::int64_t layer_elements(std::int64_t layer) const {
    const Heads heads = heads_of(layer);
    return block_size * heads.kv_heads * heads.head_dim;
  }
  // The bytes of a block's keys and values in a layer; by default in the largest.
  std::size_t layer_bytes() const {
    return static_cast<std::size_t>(2 * layer_elements()) * size_of(dtype);
  }
  std::size_t layer_bytes(std::int64_t layer) const {
    return static_cast<std::size_t>(2 * layer_elements(layer)) * size_of(dtype);
  }
  // Bytes of the layers before one, and of all.
  std::size_t bytes_before(std::int64_t layer) const {
    if (by_layer.empty()) return static_cast<std::size_t>(layer) * layer_bytes();
    std::size_t bytes = 0;
    for (std::int64_t n = 0; n < layer; ++n) bytes += layer_bytes(n);
    return bytes;
  }
  std::size_t kv_bytes() const { return bytes_before(layers); }
  // The sum of the KV heads of the layers before one.
  std::int64_t kv_heads_before(std::int64_t layer) const {
    if (by_layer.empty()) return layer * kv_heads;
    std::int64_t heads = 0;
    for (std::int64_t n = 0; n < layer; ++n) heads += heads_of(n).kv_heads;
    return heads;
  }
  std::size_t token_bytes() const {
    return static_cast<std::size_t>(block_size) * sizeof(std::int32_t);
  }
  std::size_t bytes() const { return kv_bytes() + token_bytes(); }
};

// One layer's keys and values of blocks at a constant stride, without a block table. data: the
// layer's keys of the first block, followed by its values. distance: elements from one block to the
// next.
inline kernels::KvView block_views(void* data, const BlockShape& shape, std::int64_t layer,
                                   std::int64_t blocks, std::int64_t distance) {
  const BlockShape::Heads heads = shape.heads_of(layer);
  const auto half = [&](unsigned char* begin) {
    TensorView view(begin, shape.dtype, {blocks, shape.block_size, heads.kv_heads, heads.head_dim});
    view.stride[0] = distance;
    return view;
  };
  auto* const keys = static_cast<unsigned char*>(data);
  return {
      .keys = half(keys), .values = half(keys + shape.layer_bytes(layer) / 2), .block_table = {}};
}

// The scales of an E4m3 cache (kernels/attention/kv_view.h): [layers][2][kv_heads], float32, on
// the device and on the host. Without memory: all are 1.
struct KvScales {
  const float* device = nullptr;
  const float* host = nullptr;
  BlockShape shape{};

  TensorView of_layer(std::int64_t layer) const { return of_layer(device, layer); }
  TensorView on_host(std::int64_t layer) const { return of_layer(host, layer); }

 private:
  TensorView of_layer(const float* from, std::int64_t layer) const {
    if (from == nullptr) return {};
    return {const_cast<float*>(from + 2 * shape.kv_heads_before(layer)),
            DType::f32,
            {2, shape.heads_of(layer).kv_heads}};
  }
};

// Bytes moved by one rank since its start; counted when a copy is enqueued.
struct KvTraffic {
  std::uint64_t to_host = 0;
  std::uint64_t to_device = 0;
  std::uint64_t by_host = 0;  // read in place by the host's cores, for attention

  KvTraffic& operator+=(const KvTraffic& other) {
    to_host += other.to_host;
    to_device += other.to_device;
    by_host += other.by_host;
    return *this;
  }
  bool operator==(const KvTraffic&) const = default;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(to_host, to_device, by_host);
  }
};

// The rows of one sequence in a step.
struct StepSequence {
  std::uint32_t slot = 0;           // the scheduler's, while the sequence runs
  std::span<const BlockId> blocks;  // for all tokens, including these rows'
  std::int64_t first = 0;           // position of the first row
  std::int64_t rows = 0;
  // How many of its leading blocks stay on the device while the sequence runs, in caches that
  // offload the others. Constant while the sequence runs.
  std::int64_t resident = 0;
  std::int64_t later_rows = 0;  // rows of its prompt that later steps compute

  std::int64_t length() const { return first + rows; }
};

struct KvStep {
  std::uint64_t number = 0;  // ascending
  // In batch order. Further rows of the batch are padding.
  std::span<const StepSequence> sequences;
  // The pass may run as a CUDA graph: every sequence has one row, and none starts with this step.
  // The cache decides whether it does (StepPlan::capturable).
  bool may_capture = false;
  // A sequence starts with this step. Blocks that it shares with another sequence may be computed
  // in the same step.
  bool starts = false;
};

// begin_step()'s result for the pass that follows.
struct StepPlan {
  // The pass may be captured: it depends only on device memory and graph_key. A graph that an
  // earlier step captured with the same key does the same work.
  bool capturable = false;
  std::uint64_t graph_key = 0;
};

// Not thread-safe; uses one stream for all passes. Methods that take the stream only enqueue.
class KvCache {
 public:
  virtual ~KvCache() = default;

  // Scales of keys and values, for norm_rope_store() and attention. Their memory outlives the
  // cache. They are set before the first step.
  const KvScales& scales() const { return scales_; }
  virtual void set_scales(const KvScales& scales) { scales_ = scales; }

  // The token ids of all blocks, [blocks, block_size], int32, dense. A pass writes them, and
  // penalties read them.
  virtual TensorView tokens() const = 0;
  // Whether a layer belongs to the sliding-window group (kvcache/window_blocks.h), which keeps no
  // more than its window: its blocks have their own numbers, and the batch has separate slots and a
  // block table for them. window_tokens() are the token ids of these blocks, which a pass writes,
  // too.
  virtual bool in_window_group(std::int64_t /*layer*/) const { return false; }
  virtual TensorView window_tokens() const { return {}; }
  // For each block, the block of store_view() in which this step stores its keys and values:
  // [blocks], int32; -1: none. data == nullptr: every block is stored under its own number.
  virtual TensorView block_map() const { return {}; }

  virtual StepPlan begin_step(const KvStep& step, Stream& stream) = 0;
  virtual void begin_pass(Stream& /*stream*/) {}
  // The memory in which a layer's keys and values are to be stored, at Batch::slots.
  virtual kernels::KvView store_view(std::int64_t layer, Stream& stream) = 0;
  // Enqueues the layer's attention after the work that stores its rows. `args` is complete except
  // for `kv`, which holds only the batch's block table. It may be for a part of the step's rows.
  // decode_sequences: the number of leading sequences of `args` with one row each.
  virtual void run_attention(std::int64_t layer, const kernels::Attention& args,
                             std::int64_t decode_sequences, Stream& stream) = 0;
  // The reads of run_attention(), for prefetching into L2; empty if unknown in advance.
  virtual kernels::KvPrefetch prefetch(std::int64_t /*layer*/, TensorView /*block_table*/,
                                       TensorView /*kv_length*/) const {
    return {};
  }
  virtual void end_pass(Stream& /*stream*/) {}
  virtual void end_step(Stream& /*stream*/) {}

  // Called when the sequence in this slot has ended or was preempted.
  virtual void end_sequence(std::uint32_t /*slot*/) {}

  // The traffic of all steps since the start.
  virtual KvTraffic traffic() const { return {}; }

 private:
  KvScales scales_;
};

// A cache that consists only of views, one per layer: all of it is on the device, and the owner of
// the memory manages its contents.
class ViewCache : public KvCache {
 public:
  ViewCache() = default;
  explicit ViewCache(std::vector<kernels::KvView> views) : views_(std::move(views)) {}

  std::span<const kernels::KvView> views() const { return views_; }  // without tables
  TensorView tokens() const override { return {}; }
  StepPlan begin_step(const KvStep& step, Stream&) override {
    starts_ = step.starts;
    return {.capturable = step.may_capture, .graph_key = 0};
  }
  kernels::KvView store_view(std::int64_t layer, Stream&) override {
    return views_.at(static_cast<std::size_t>(layer));
  }
  void run_attention(std::int64_t layer, const kernels::Attention& args,
                     std::int64_t decode_sequences, Stream& stream) override {
    kernels::Attention all = args;
    all.kv = store_view(layer, stream);
    all.kv.block_table = args.kv.block_table;
    all.history_is_visible = !starts_;
    kernels::attention(all, decode_sequences, stream);
  }

  kernels::KvPrefetch prefetch(std::int64_t layer, TensorView block_table,
                               TensorView kv_length) const override {
    kernels::KvPrefetch all{.kv = views_.at(static_cast<std::size_t>(layer)),
                            .kv_length = kv_length};
    all.kv.block_table = block_table;
    return all;
  }

 protected:
  std::vector<kernels::KvView> views_;

 private:
  bool starts_ = false;  // KvStep's
};

}  // namespace nvllm::kvcache
