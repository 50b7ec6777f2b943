// PagedCache: one rank's memory of a paged KV cache, and the host blocks to which sequences can be
// swapped. GroupedCache: two of them, where layers with a window keep no more than that.
//
// A block's keys and values are contiguous, [layer][keys, values][token][kv_head][head_dim], so
// that one copy swaps it; blocks that are adjacent on both sides share a copy. The token ids of all
// blocks follow them, [blocks, block_size], int32. Penalties read them, and they are swapped
// together with their block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/backend.h"
#include "kernels/attention/kv_view.h"
#include "kvcache/block_manager.h"
#include "kvcache/kv_cache.h"

namespace nvllm::kvcache {

// From a device block to a host block, or the reverse.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
};

// Not thread-safe.
class PagedCache final : public ViewCache {
 public:
  // Takes exactly blocks * shape.bytes(). Ledger: "kv cache" (device). Its contents are undefined.
  PagedCache(Backend& backend, const BlockShape& shape, std::int64_t blocks,
             std::int64_t host_blocks);

  // If device memory is host memory: makes the system allocate all of it now. `progress`, if not
  // empty, is called repeatedly, by this thread.
  void commit(const std::function<void()>& progress);

  // views(): the block stride is a whole block.
  TensorView tokens() const override { return tokens_; }
  const BlockShape& shape() const { return shape_; }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t host_blocks() const { return host_blocks_; }

  // Enqueued in stream order: swap_out copies from device blocks to host blocks, swap_in back. The
  // blocks of a call are all different. Throws an Error if a block does not exist. Host blocks are
  // allocated in pieces when first used, as pinned memory is slow to allocate and most runs swap
  // nothing. Ledger: "swapped kv cache" (pinned).
  void swap_out(std::span<const BlockCopy> copies, Stream& stream);
  void swap_in(std::span<const BlockCopy> copies, Stream& stream);
  KvTraffic traffic() const override { return traffic_; }

 private:
  // Contiguous keys and values of some blocks, followed by the blocks' tokens.
  struct Place {
    unsigned char* memory;
    std::int64_t blocks;  // in there
    std::int64_t first;   // the block's index among them
  };
  Place on_device(BlockId block) const;
  Place on_host(BlockId block) const;
  void make_host_piece(BlockId block);
  void check_blocks(const BlockCopy& copy, bool out) const;
  std::size_t run_length(std::span<const BlockCopy> copies, bool out) const;
  void copy(const Place& to, const Place& from, std::size_t count, Stream& stream);

  Backend& backend_;
  BlockShape shape_;
  std::int64_t blocks_;
  std::int64_t host_blocks_;
  std::int64_t piece_blocks_;
  Buffer memory_;
  std::vector<Buffer> host_pieces_;  // of piece_blocks_ each, the last of fewer; empty until needed
  TensorView tokens_;
  KvTraffic traffic_;
};

// GroupedCache: a paged cache whose layers form two groups with separate blocks: those that keep
// all tokens, and sliding-window layers, which keep no more than their window
// (kvcache/window_blocks.h). It maps each layer to its group; PagedCache does the rest.
// Not thread-safe.
class GroupedCache final : public KvCache {
 public:
  // in_windows: by layer, whether it belongs to `windows`, which holds these layers in order; `all`
  // holds the others.
  GroupedCache(std::unique_ptr<PagedCache> all, std::unique_ptr<PagedCache> windows,
               const std::vector<bool>& in_windows)
      : all_(std::move(all)), windows_(std::move(windows)) {
    std::int64_t next_of_all = 0, next_of_windows = 0;
    for (const bool in_window : in_windows) {
      places_.push_back(
          {.in_window = in_window, .layer = in_window ? next_of_windows++ : next_of_all++});
    }
    NVLLM_CHECK_EQ(next_of_all, all_->shape().layers);
    NVLLM_CHECK_EQ(next_of_windows, windows_->shape().layers);
  }

  PagedCache& all() { return *all_; }
  PagedCache& windows() { return *windows_; }

  TensorView tokens() const override { return all_->tokens(); }
  bool in_window_group(std::int64_t layer) const override { return place_of(layer).in_window; }
  TensorView window_tokens() const override { return windows_->tokens(); }

  StepPlan begin_step(const KvStep& step, Stream& stream) override {
    windows_->begin_step(step, stream);
    return all_->begin_step(step, stream);
  }
  kernels::KvView store_view(std::int64_t layer, Stream& stream) override {
    const Place place = place_of(layer);
    return cache_of(place).store_view(place.layer, stream);
  }
  void run_attention(std::int64_t layer, const kernels::Attention& args,
                     std::int64_t decode_sequences, Stream& stream) override {
    const Place place = place_of(layer);
    cache_of(place).run_attention(place.layer, args, decode_sequences, stream);
  }
  kernels::KvPrefetch prefetch(std::int64_t layer, TensorView block_table,
                               TensorView kv_length) const override {
    const Place place = place_of(layer);
    return cache_of(place).prefetch(place.layer, block_table, kv_length);
  }

  KvTraffic traffic() const override {
    KvTraffic both = all_->traffic();
    return both += windows_->traffic();
  }

 private:
  struct Place {
    bool in_window = false;
    std::int64_t layer = 0;  // index within its group
  };
  const Place& place_of(std::int64_t layer) const {
    return places_[static_cast<std::size_t>(layer)];
  }
  PagedCache& cache_of(const Place& place) const { return place.in_window ? *windows_ : *all_; }

  std::unique_ptr<PagedCache> all_, windows_;
  std::vector<Place> places_;
};

}  // namespace nvllm::kvcache
