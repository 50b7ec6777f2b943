// GroupedCache: a paged cache whose layers form two groups with separate blocks: those that keep
// all tokens, and sliding-window layers, which keep no more than their window
// (kvcache/window_blocks.h). It maps each layer to its group; PagedCache does the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kvcache/kv_cache.h"
#include "kvcache/paged/paged_cache.h"

namespace nvllm::kvcache {

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
