#include "runtime/runner/runner_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "base/text.h"
#include "device/topology.h"
#include "kvcache/layerwise/layerwise_cache.h"

namespace nvllm::runtime {
namespace {

static_assert(kQuestPageTokens == kvcache::Quest::kPageTokens);

void log_speeds(const kvcache::HostAttention::Speeds& speeds) {
  const auto rate = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  log_info("attention in host memory: cores read ", rate(speeds.cores), " a second, while ",
           rate(speeds.link), " go to the device; the cores' share is ",
           std::lround(100 * speeds.share()), "%");
}

kvcache::PromptLimits prompt_limits(const model::Decoder& decoder, const RunnerOptions& options,
                                    DeviceKind device) {
  const std::int64_t keys = decoder.heads().kv.size() * decoder.config().head_dim;
  const bool e4m3 = options.kv_cache_dtype == KvCacheDtype::fp8_e4m3;
  const bool gathers = e4m3 || (device == DeviceKind::cuda && decoder.dtype() != DType::f32);
  return {.rows = options.decoder_limits().rows_at_once(),
          .tokens = options.max_model_len,
          .heads = decoder.heads().q.size(),
          .key_bytes = gathers ? static_cast<std::size_t>(keys) * size_of(decoder.dtype()) : 0,
          .e4m3 = e4m3};
}

}  // namespace

RunnerCache::RunnerCache(const model::Decoder& decoder, Backend& backend, Stream& stream,
                         const RunnerOptions& options)
    : decoder_(decoder), backend_(backend), stream_(stream), options_(options) {
  const kvcache::PromptLimits limits = prompt_limits(decoder, options, backend.kind());
  if (options.prefill_attention == PrefillAttention::minference) {
    prompt_policy_ = kvcache::MInference::create(backend, limits);
  } else if (options.prefill_attention != PrefillAttention::full) {
    prompt_policy_ = kvcache::XAttention::create(backend, limits);
  }
}

std::size_t RunnerCache::prompt_policy_bytes(const model::Decoder& decoder,
                                             const RunnerOptions& options, DeviceKind device) {
  if (options.prefill_attention == PrefillAttention::full) return 0;
  const kvcache::PromptLimits limits = prompt_limits(decoder, options, device);
  return options.prefill_attention == PrefillAttention::minference
             ? kvcache::MInference::bytes(limits)
             : kvcache::XAttention::bytes(limits);
}

kvcache::BlockShape RunnerCache::block_shape() const {
  return decoder_.block_shape(options_.block_size, is_fp8() ? DType::u8 : decoder_.dtype());
}

std::optional<kvcache::QuestLimits> RunnerCache::quest_limits(std::int64_t blocks) const {
  if (!decodes_by_quest()) return std::nullopt;
  return kvcache::QuestLimits{.shape = block_shape(),
                              .blocks = blocks,
                              .sequences = options_.max_num_seqs,
                              .tokens = options_.max_model_len};
}

kvcache::SparseLimits RunnerCache::sparse_limits() const {
  const bool automatic = options_.prefill_attention == PrefillAttention::automatic;
  return {.rows = options_.decoder_limits().rows_at_once(),
          .sequences = options_.max_num_seqs,
          .min_tokens = automatic ? kAutomaticSparseTokens : kMinSparseTokens};
}

std::size_t RunnerCache::sparse_bytes(bool layerwise) const {
  if (!is_sparse()) return 0;
  return kvcache::SparseCache::bytes(quest_limits(0), sparse_limits(), layerwise);
}

// By default the ranks of GPUs share the cores, as all may be near the same ones; the ranks of CPUs
// have already been assigned their share.
int RunnerCache::host_threads() const {
  if (options_.host_threads > 0) return static_cast<int>(options_.host_threads);
  const int ranks = backend_.kind() == DeviceKind::cpu ? 1 : decoder_.shard().ranks;
  return std::max(1, static_cast<int>(allowed_cores().size()) / ranks);
}

kvcache::ChunkedOptions RunnerCache::chunked_options(std::int64_t blocks, std::int64_t device_slots,
                                                     bool all_resident) const {
  return {.blocks = blocks,
          .device_slots = device_slots,
          .all_stay = all_resident,
          .ring_slots = options_.ring_slots,
          .sequences = options_.max_num_seqs,
          .rows = options_.rows(),
          .heads = decoder_.heads().q.size(),
          .steps_ahead = options_.steps_ahead,
          .quest = decodes_by_quest(),
          .prompts = prompt_policy_.get(),
          .min_tokens = sparse_limits().min_tokens,
          .whole_sequences = options_.whole_sequences,
          .tokens = options_.max_model_len,
          .host_share = options_.host_attention,
          .host_threads = host_threads(),
          .query_dtype = decoder_.dtype(),
          .hooks = options_.offload_hooks};
}

// Without linear attention or shared keys and values, each layer of the cache is one of the model.
std::vector<bool> RunnerCache::layers_in_window_group() const {
  std::vector<bool> windows;
  for (std::int64_t layer = 0; layer < decoder_.config().layers; ++layer)
    windows.push_back(decoder_.config().window_of(layer) > 0);
  return windows;
}

kvcache::BlockShape RunnerCache::shape_of_group(bool windows) const {
  kvcache::BlockShape shape = block_shape();
  const std::vector<bool> layers = layers_in_window_group();
  NVLLM_CHECK(shape.by_layer.empty() && std::ssize(layers) == shape.layers, shape.layers,
              " layers of a group of windows and another");
  shape.layers = std::ranges::count(layers, windows);
  return shape;
}

CacheBytes RunnerCache::bytes() const {
  const kvcache::BlockShape shape = block_shape();
  const std::size_t quest_block = decodes_by_quest() ? kvcache::Quest::block_bytes(shape) : 0;
  if (options_.kv_mode == KvMode::layerwise) {
    return {.block = kvcache::LayerwiseCache::device_bytes(shape, options_.kv_buffers,
                                                           decodes_by_quest()) +
                     quest_block,
            .host_block = kvcache::LayerwiseCache::host_bytes(shape),
            .fixed = sparse_bytes(true) + scale_bytes()};
  }
  if (has_window_group()) {
    return {.block = shape_of_group(false).bytes(),
            .fixed = scale_bytes(),
            .window_block = shape_of_group(true).bytes()};
  }
  if (options_.kv_mode != KvMode::chunked) {
    return {.block = shape.bytes() + quest_block, .fixed = sparse_bytes(false) + scale_bytes()};
  }
  return {.block = kvcache::ChunkedCache::device_bytes_per_block(shape, decodes_by_quest()),
          .host_block = shape.kv_bytes(),
          .fixed = kvcache::ChunkedCache::device_bytes(shape, chunked_options(0, 0, false)) +
                   scale_bytes(),
          .device_slot = shape.kv_bytes() +
                         static_cast<std::size_t>(options_.max_num_seqs) * sizeof(std::int32_t)};
}

// Memory for the scales that a checkpoint may have; a model without them leaves it unused.
std::size_t RunnerCache::scale_bytes() const {
  const kvcache::BlockShape shape = block_shape();
  return is_fp8()
             ? static_cast<std::size_t>(2 * shape.kv_heads_before(shape.layers)) * sizeof(float)
             : 0;
}

void RunnerCache::make(const CacheSize& size, std::vector<float> kv_scales) {
  NVLLM_CHECK(!made(), "there is a cache already");
  make_mode(size);
  if (is_fp8() && !kv_scales.empty()) set_scales(std::move(kv_scales));
}

void RunnerCache::set_scales(std::vector<float> scales) {
  NVLLM_CHECK_EQ(scales.size() * sizeof(float), scale_bytes());
  scales_ = std::move(scales);
  device_scales_ = backend_.allocate(MemoryKind::device, scale_bytes(), "kv scales");
  const Buffer staging = backend_.allocate(MemoryKind::pinned, scale_bytes(), "kv scales");
  std::memcpy(staging.data(), scales_.data(), scale_bytes());
  backend_.copy(device_scales_.data(), staging.data(), scale_bytes(), stream_);
  stream_.synchronize();
  cache_->set_scales({.device = static_cast<const float*>(device_scales_.data()),
                      .host = scales_.data(),
                      .shape = block_shape()});
}

void RunnerCache::make_mode(const CacheSize& size) {
  if (options_.kv_mode == KvMode::layerwise) {
    return use(
        std::make_unique<kvcache::LayerwiseCache>(backend_, block_shape(), size.blocks,
                                                  options_.kv_buffers, 0, decodes_by_quest()),
        size.blocks);
  }
  if (options_.kv_mode == KvMode::chunked) {
    NVLLM_CHECK_EQ(size.host_blocks, 0);
    auto chunked = std::make_unique<kvcache::ChunkedCache>(
        backend_, block_shape(),
        chunked_options(size.blocks, size.device_slots, size.all_resident));
    if (const auto& speeds = chunked->host_speeds()) log_speeds(*speeds);
    cache_ = std::move(chunked);
    return;
  }
  const auto make_paged = [&](const kvcache::BlockShape& shape, std::int64_t blocks,
                              std::int64_t host_blocks) {
    return std::make_unique<kvcache::PagedCache>(backend_, shape, blocks, host_blocks);
  };
  if (has_window_group()) {
    NVLLM_CHECK(options_.kv_mode == KvMode::paged && !is_sparse(), "a group of windows");
    auto grouped = std::make_unique<kvcache::GroupedCache>(
        make_paged(shape_of_group(false), size.blocks, size.host_blocks),
        make_paged(shape_of_group(true), size.window_blocks, size.host_window_blocks),
        layers_in_window_group());
    paged_ = &grouped->all();
    paged_windows_ = &grouped->windows();
    cache_ = std::move(grouped);
    return;
  }
  NVLLM_CHECK_EQ(size.window_blocks, 0);
  auto paged = make_paged(block_shape(), size.blocks, size.host_blocks);
  paged_ = paged.get();
  use(std::move(paged), size.blocks);
}

void RunnerCache::commit(const std::function<void()>& progress) {
  if (paged_ != nullptr) paged_->commit(progress);
  if (paged_windows_ != nullptr) paged_windows_->commit(progress);
}

// Wraps the storage in a sparse cache if a policy needs one. A chunked cache calls the policies
// itself.
template <typename Storage>
void RunnerCache::use(std::unique_ptr<Storage> storage, std::int64_t blocks) {
  if (is_sparse()) {
    cache_ = std::make_unique<kvcache::SparseCache>(
        backend_, stream_, *storage, prompt_policy_.get(), quest_limits(blocks), sparse_limits());
    storage_ = std::move(storage);
  } else {
    cache_ = std::move(storage);
  }
}

void RunnerCache::swap(const StepMessage& message) {
  const auto copy = [&](kvcache::PagedCache* cache, std::span<const kvcache::BlockCopy> out,
                        std::span<const kvcache::BlockCopy> in) {
    NVLLM_CHECK(cache != nullptr || (out.empty() && in.empty()));
    if (!out.empty()) cache->swap_out(out, stream_);
    if (!in.empty()) cache->swap_in(in, stream_);
  };
  copy(paged_, message.swap_out, message.swap_in);
  copy(paged_windows_, message.windows.swap_out, message.windows.swap_in);
}

StateStore::StateStore(const model::Decoder& decoder, const model::DecoderMemory& memory,
                       Backend& backend, std::int64_t snapshots, std::int64_t host_states)
    : memory_(memory),
      backend_(backend),
      state_bytes_(model::DecoderMemory::state_bytes(decoder, 1)),
      snapshots_(snapshots),
      snapshot_memory_(backend.allocate(MemoryKind::device,
                                        static_cast<std::size_t>(snapshots) * state_bytes_,
                                        "linear attention snapshots")),
      host_(static_cast<std::size_t>(host_states)) {}

std::byte* StateStore::snapshot(std::int32_t number) const {
  NVLLM_CHECK(number >= 0 && number < snapshots_, "snapshot ", number, " of ", snapshots_);
  return static_cast<std::byte*>(snapshot_memory_.data()) +
         static_cast<std::size_t>(number) * state_bytes_;
}

std::byte* StateStore::host_state(std::int32_t number, Direction direction) {
  NVLLM_CHECK(number >= 0 && static_cast<std::size_t>(number) < host_.size(), "states ", number,
              " of ", host_.size(), " on the host");
  Buffer& buffer = host_[static_cast<std::size_t>(number)];
  if (!buffer && direction == Direction::from_slot) {
    buffer = backend_.allocate(MemoryKind::pinned, state_bytes_, "swapped linear attention states");
  }
  return static_cast<std::byte*>(buffer.data());
}

// place: state_bytes_ of memory; on a rank without heads it is empty, and nothing is copied.
void StateStore::copy(std::int32_t slot, std::byte* place, Direction direction, Stream& stream) {
  memory_.for_each_state_piece(slot, [&](void* piece, std::size_t bytes) {
    if (direction == Direction::from_slot) {
      backend_.copy(place, piece, bytes, stream);
    } else {
      backend_.copy(piece, place, bytes, stream);
    }
    place += Arena::rounded(bytes);
  });
}

void StateStore::load(const StateCopies& copies, Stream& stream) {
  for (const StateCopy& one : copies.swap_out)
    copy(one.from, host_state(one.to, Direction::from_slot), Direction::from_slot, stream);
  for (const StateCopy& one : copies.swap_in)
    copy(one.to, host_state(one.from, Direction::to_slot), Direction::to_slot, stream);
  for (const StateCopy& one : copies.restore)
    copy(one.to, snapshot(one.from), Direction::to_slot, stream);
}

void StateStore::save(const StateCopies& copies, Stream& stream) {
  for (const StateCopy& one : copies.save)
    copy(one.from, snapshot(one.to), Direction::from_slot, stream);
}

}  // namespace nvllm::runtime
