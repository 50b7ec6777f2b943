#include "runtime/runner_cache.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "base/text.h"
#include "device/topology.h"
#include "kvcache/layerwise/layerwise_cache.h"
#include "runtime/runner_limits.h"

namespace nvllm::runtime {
namespace {

void tell(const kvcache::HostAttention::Speeds& speeds) {
  const auto rate = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  log_info("attention in host memory: cores read ", rate(speeds.cores), " a second, while ",
           rate(speeds.link), " go to the device; the cores' share is ",
           std::lround(100 * speeds.share()), "%");
}

}  // namespace

RunnerCache::RunnerCache(const model::Decoder& decoder, Backend& backend, Stream& stream,
                         const RunnerOptions& options)
    : decoder_(decoder),
      backend_(backend),
      stream_(stream),
      options_(options),
      sparse_(backend, options.sparse, sparse_limits(decoder, options, backend.kind())) {}

kvcache::BlockShape RunnerCache::block_shape() const {
  return {.layers = decoder_.config().layers,
          .block_size = options_.block_size,
          .kv_heads = decoder_.heads().kv.size(),
          .head_dim = decoder_.config().head_dim,
          .dtype = decoder_.dtype()};
}

// By default the ranks of GPUs, which may all be near the same cores, share them; those of the CPU have done so.
int RunnerCache::host_threads() const {
  if (options_.host_threads > 0) return static_cast<int>(options_.host_threads);
  const int ranks = backend_.kind() == DeviceKind::cpu ? 1 : decoder_.shard().ranks;
  return std::max(1, static_cast<int>(allowed_cores().size()) / ranks);
}

kvcache::ChunkedOptions RunnerCache::chunked_options(std::int64_t blocks, std::int64_t device_slots,
                                                     bool all_stay) const {
  const StagingLimits limits = staging_limits(options_);
  return {.blocks = blocks,
          .device_slots = device_slots,
          .all_stay = all_stay,
          .ring_slots = options_.ring_slots,
          .sequences = limits.slots,
          .rows = limits.rows,
          .heads = decoder_.heads().q.size(),
          .steps_ahead = options_.steps_ahead,
          .quest = decodes_by_quest(),
          .prompts = sparse_.prompts(),
          .min_tokens = sparse_.min_tokens(),
          .tokens = options_.max_model_len,
          .host_share = options_.host_attention,
          .host_threads = host_threads(),
          .hooks = options_.offload_hooks};
}

CacheBytes RunnerCache::bytes() const {
  const kvcache::BlockShape shape = block_shape();
  if (options_.kv_mode == KvMode::layerwise) {
    return {.block = kvcache::LayerwiseCache::device_bytes(shape, options_.kv_buffers,
                                                             decodes_by_quest()) +
                     sparse_.block_bytes(shape),
            .host_block = kvcache::LayerwiseCache::host_bytes(shape),
            .fixed = sparse_.fixed_bytes(shape, true)};
  }
  if (options_.kv_mode != KvMode::chunked) {
    return {.block = shape.bytes() + sparse_.block_bytes(shape),
            .fixed = sparse_.fixed_bytes(shape)};
  }
  return {.block = kvcache::ChunkedCache::device_bytes_per_block(shape, decodes_by_quest()),
          .host_block = shape.kv_bytes(),
          .fixed = kvcache::ChunkedCache::device_bytes(shape, chunked_options(0, 0, false)),
          .device_slot = shape.kv_bytes() +
                         static_cast<std::size_t>(options_.max_num_seqs) * sizeof(std::int32_t)};
}

void RunnerCache::make(std::int64_t blocks, std::int64_t host_blocks, std::int64_t device_slots,
                       bool all_stay) {
  NVLLM_CHECK(!made(), "there is a cache already");
  if (options_.kv_mode == KvMode::layerwise) {
    return use(std::make_unique<kvcache::LayerwiseCache>(
                   backend_, block_shape(), blocks, options_.kv_buffers, 0, decodes_by_quest()),
               blocks);
  }
  if (options_.kv_mode == KvMode::chunked) {
    NVLLM_CHECK_EQ(host_blocks, 0);
    auto chunked = std::make_unique<kvcache::ChunkedCache>(
        backend_, block_shape(), chunked_options(blocks, device_slots, all_stay));
    if (const auto& speeds = chunked->host_speeds()) tell(*speeds);
    cache_ = std::move(chunked);
    return;
  }
  auto paged =
      std::make_unique<kvcache::PagedCache>(backend_, block_shape(), blocks, host_blocks);
  paged_ = paged.get();
  use(std::move(paged), blocks);
}

// Of a cache that is on the device, all of it or by layers.
template <typename Storage>
void RunnerCache::use(std::unique_ptr<Storage> own, std::int64_t blocks) {
  if (options_.sparse.any()) {
    cache_ = sparse_.wrap(*own, block_shape(), blocks, stream_);
    storage_ = std::move(own);
  } else {
    cache_ = std::move(own);
  }
}

void RunnerCache::swap(std::span<const kvcache::BlockCopy> out,
                       std::span<const kvcache::BlockCopy> in) {
  NVLLM_CHECK(paged_ != nullptr || (out.empty() && in.empty()));
  if (!out.empty()) paged_->swap_out(out, stream_);
  if (!in.empty()) paged_->swap_in(in, stream_);
}

}  // namespace nvllm::runtime
