#include "kvcache/layerwise/layerwise_cache.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <tuple>

#include "base/check.h"
#include "base/math.h"
#include "kernels/pointwise/copy.h"

namespace nvllm::kvcache {
std::size_t LayerwiseCache::device_bytes(const BlockShape& shape, std::int64_t buffers,
                                         bool decodes_on_host) {
  const std::size_t tables = decodes_on_host ? HostTables::device_bytes(shape.layers) : 0;
  return static_cast<std::size_t>(buffers) * shape.layer_bytes() + shape.token_bytes() + tables;
}

LayerwiseCache::LayerwiseCache(Backend& backend, const BlockShape& shape, std::int64_t blocks,
                               std::int64_t buffers, std::uint32_t left_out, bool decodes_on_host,
                               const GroupSizes& sizes)
    : backend_(backend),
      shape_(shape),
      blocks_(blocks),
      left_out_(left_out),
      host_(backend, shape, blocks, sizes),
      load_stream_(backend.create_stream()),
      write_stream_(backend.create_stream()),
      decodes_on_host_(decodes_on_host) {
  NVLLM_CHECK(blocks > 0 && buffers >= 2, blocks, " blocks and ", buffers, " buffers");
  const auto count = static_cast<std::size_t>(blocks);
  device_ =
      backend.allocate(MemoryKind::device, count * device_bytes(shape, buffers), "kv cache layers");
  auto* data = static_cast<unsigned char*>(device_.data());
  for (std::int64_t i = 0; i < buffers; ++i, data += count * shape.layer_bytes()) {
    BufferState& buffer = buffers_.emplace_back();
    buffer.data = data;
    buffer.loaded = backend.create_event();
    buffer.computed = backend.create_event();
    buffer.written = backend.create_event();
  }
  tokens_ = TensorView(data, DType::i32, {blocks, shape.block_size});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    layer_written_.push_back(backend.create_event());
    left_.push_back(backend.create_event());
    arrived_.push_back(backend.create_event());
  }
  for (auto* const event : {&joined_, &all_written_}) *event = backend.create_event();
  if (decodes_on_host) {
    tables_.emplace(backend, shape.layers, blocks, host_.group_blocks(), *write_stream_);
  }
}

LayerwiseCache::~LayerwiseCache() {
  for (Stream* const stream : {load_stream_.get(), write_stream_.get()}) {
    try {
      stream->synchronize_for(std::chrono::seconds(10));
    } catch (const std::exception&) {  // also reported by the pass's stream
    }
  }
}

// --- A step's copies ---

void LayerwiseCache::add_parts(std::vector<Part>& parts, std::span<const BlockId> blocks,
                               std::int64_t first, std::int64_t end) const {
  const std::int64_t size = shape_.block_size;
  for (std::int64_t i = first / size; i * size < end; ++i) {
    parts.push_back({.block = blocks[static_cast<std::size_t>(i)],
                     .begin = std::max<std::int64_t>(first - i * size, 0),
                     .end = std::min(end - i * size, size)});
  }
}

void LayerwiseCache::join(std::vector<Part>& parts) const {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::tie(a.block, a.begin) < std::tie(b.block, b.begin);
  });
  const auto whole = [&](const Part& part) {
    return part.begin == 0 && part.end == shape_.block_size;
  };
  std::size_t kept = 0;
  for (const Part& part : parts) {
    Part* const last = kept > 0 ? &parts[kept - 1] : nullptr;
    if (last != nullptr && part.block < last->block + last->blocks) {
      // Sequences that share a block have the same tokens in it.
      last->end = std::max(last->end, part.end);
    } else if (last != nullptr && part.block == last->block + last->blocks &&
               !host_.begins_group(part.block) && whole(*last) && whole(part)) {
      ++last->blocks;
    } else {
      parts[kept++] = part;
    }
  }
  parts.resize(kept);
}

std::uint64_t LayerwiseCache::bytes_of(std::uint64_t tokens, std::int64_t layers) const {
  return tokens * (shape_.bytes_before(layers) / static_cast<std::uint64_t>(shape_.block_size));
}

std::uint64_t LayerwiseCache::bytes_of(std::span<const Part> parts, std::int64_t layers) const {
  std::uint64_t tokens = 0;
  for (const Part& part : parts) {
    tokens += static_cast<std::uint64_t>((part.end - part.begin) * part.blocks);
  }
  return bytes_of(tokens, layers);
}

// Copies a part between a buffer and a group; `to` and `from` point to the part's first block.
void LayerwiseCache::copy(const Part& part, std::int64_t layer, unsigned char* to,
                          const unsigned char* from, Stream& stream) {
  const std::size_t block_bytes = shape_.layer_bytes(layer);
  if (block_bytes == 0) return;
  if (part.end - part.begin == shape_.block_size) {
    const std::size_t bytes = static_cast<std::size_t>(part.blocks) * block_bytes;
    return backend_.copy(to, from, bytes, stream);
  }
  const std::size_t half = block_bytes / 2;
  const std::size_t token = half / static_cast<std::size_t>(shape_.block_size);
  for (const std::size_t side : {std::size_t{0}, half}) {
    const std::size_t begin = side + static_cast<std::size_t>(part.begin) * token;
    backend_.copy(to + begin, from + begin, static_cast<std::size_t>(part.end - part.begin) * token,
                  stream);
  }
}

// --- A step ---

void LayerwiseCache::wait(LayerwiseWait which, Stream& stream, const Event& event) const {
  if ((left_out_ >> static_cast<unsigned>(which) & 1u) == 0) stream.wait(event);
}

LayerwiseCache::BufferState& LayerwiseCache::buffer_of(std::int64_t layer) {
  const std::uint64_t visits = capturable_ ? 0 : visits_;
  return buffers_[(visits + static_cast<std::uint64_t>(layer)) % buffers_.size()];
}

kernels::KvView LayerwiseCache::view_in(const BufferState& buffer, std::int64_t layer) const {
  return layer_view(buffer.data, shape_, layer, blocks_);
}

StepPlan LayerwiseCache::begin_step(const KvStep& step, Stream& stream) {
  NVLLM_CHECK_EQ(layer_, kNoLayer);
  on_host_ =
      decodes_on_host_ && std::all_of(step.sequences.begin(), step.sequences.end(),
                                      [](const StepSequence& each) { return each.rows == 1; });
  if (on_host_) return begin_host_step(step, stream);
  writing_ = true;
  capturable_ = step.may_capture;
  if (capturable_) {
    choose_loads(step.sequences);
    choose_newest(step.sequences);
    choose_graph_key();
    if (!preloaded_) preload(stream);
    preloaded_ = true;
    traffic_.to_device += bytes_of(loads_, shape_.layers);
    traffic_.to_host += bytes_of(step.sequences.size(), shape_.layers);
    return {.capturable = true, .graph_key = graph_key_};
  }
  preloaded_ = false;
  loads_.clear();
  writes_.clear();
  for (const StepSequence& sequence : step.sequences) {
    add_parts(loads_, sequence.blocks, 0, sequence.first);
    add_parts(writes_, sequence.blocks, sequence.first, sequence.length());
  }
  join(loads_);
  join(writes_);
  traffic_.to_device += bytes_of(loads_, shape_.layers);
  traffic_.to_host += bytes_of(writes_, shape_.layers);
  const auto ahead = std::min(shape_.layers, static_cast<std::int64_t>(buffers_.size()));
  for (std::int64_t layer = 0; layer < ahead; ++layer) load(layer);
  return {};
}

// Loads a layer into its buffer, once the buffer is free and the layer is complete on the host.
void LayerwiseCache::load(std::int64_t layer) {
  BufferState& buffer = buffer_of(layer);
  wait(LayerwiseWait::load_of_reading, *load_stream_, *buffer.computed);
  wait(LayerwiseWait::load_of_writing, *load_stream_, *buffer.written);
  wait(LayerwiseWait::load_of_layer, *load_stream_,
       *layer_written_[static_cast<std::size_t>(layer)]);
  copy_loads(layer);
  buffer.loaded->record(*load_stream_);
}

unsigned char* LayerwiseCache::place(std::int64_t layer, BlockId block) {
  return buffer_of(layer).data + static_cast<std::size_t>(block) * shape_.layer_bytes(layer);
}

void LayerwiseCache::copy_loads(std::int64_t layer) {
  for (const Part& part : loads_) {
    copy(part, layer, place(layer, part.block), host_.part(part.block, layer), *load_stream_);
  }
}

kernels::KvView LayerwiseCache::store_view(std::int64_t layer, Stream& stream) {
  if (layer != layer_) written_ = 0;
  if (on_host_) {
    layer_ = layer;
    // Any buffer serves all layers: each layer is stored and read before the next one.
    return view_in(buffers_.front(), layer);
  }
  BufferState& buffer = buffer_of(layer);
  if (layer != layer_) {
    NVLLM_CHECK_EQ(layer, layer_ + 1);
    if (layer_ != kNoLayer) capturable_ ? leave_captured_layer(stream) : leave_layer(stream);
    layer_ = layer;
    // The first layers of a captured pass are loaded before it begins.
    const bool there = capturable_ && layer < static_cast<std::int64_t>(buffers_.size());
    if (there) return view_in(buffer, layer);
    wait(LayerwiseWait::pass_of_load, stream,
         capturable_ ? *arrived_[static_cast<std::size_t>(layer)] : *buffer.loaded);
  }
  return view_in(buffer, layer);
}

void LayerwiseCache::run_attention(std::int64_t layer, const kernels::Attention& args,
                                   std::int64_t /*decode_sequences*/, Stream& stream) {
  NVLLM_CHECK_EQ(layer, layer_);
  NVLLM_CHECK(!on_host_);
  kernels::Attention all = args;
  all.kv = store_view(layer, stream);
  all.kv.block_table = args.kv.block_table;
  kernels::attention(all, stream);
  if (capturable_) write_newest(layer, args.kv_length, stream);
}

// The device does not know the addresses of groups, so each sequence has its own kernel launch with
// the address of its block.
std::span<const BlockId> LayerwiseCache::write_newest(std::int64_t layer,
                                                      const TensorView& kv_length, Stream& stream) {
  const kernels::KvView from = store_view(layer, stream);
  const auto sequences = static_cast<std::size_t>(kv_length.shape[0]);
  const auto blocks =
      std::span(newest_).subspan(written_, std::min(sequences, newest_.size() - written_));
  written_ += blocks.size();
  std::int64_t sequence = 0;
  for (const BlockId block : blocks) {
    kernels::CopyLastKv copy;
    copy.to = host_.block_view(block, layer);
    copy.from.keys = from.keys.rows(block, 1);
    copy.from.values = from.values.rows(block, 1);
    copy.kv_length = kv_length.rows(sequence++, 1);
    kernels::copy_last_kv(copy, stream);
  }
  return blocks;
}

// Writes the new tokens of this layer to the host after the compute, and loads the layer that
// reuses its buffer.
void LayerwiseCache::leave_layer(Stream& stream) {
  BufferState& buffer = buffer_of(layer_);
  const auto layer = static_cast<std::size_t>(layer_);
  buffer.computed->record(stream);
  wait(LayerwiseWait::writing_of_pass, *write_stream_, *buffer.computed);
  for (const Part& part : writes_) {
    copy(part, layer_, host_.part(part.block, layer_), place(layer_, part.block), *write_stream_);
  }
  buffer.written->record(*write_stream_);
  layer_written_[layer]->record(*write_stream_);
  const std::int64_t next = layer_ + static_cast<std::int64_t>(buffers_.size());
  if (next < shape_.layers) load(next);
}

void LayerwiseCache::end_pass(Stream& stream) {
  NVLLM_CHECK_EQ(layer_, shape_.layers - 1);
  if (on_host_) {
    layer_ = kNoLayer;
    return;
  }
  if (capturable_) {
    leave_captured_layer(stream);
    joined_->record(*load_stream_);
    wait(LayerwiseWait::pass_of_loads, stream, *joined_);
  } else {
    leave_layer(stream);
    visits_ += static_cast<std::uint64_t>(shape_.layers);
  }
  layer_ = kNoLayer;
}

// --- Captured steps ---

void LayerwiseCache::choose_loads(std::span<const StepSequence> sequences) {
  loads_.clear();
  const std::int64_t grain = std::min(kGrain, shape_.block_size);
  for (const StepSequence& sequence : sequences) {
    const std::int64_t inside = sequence.first % shape_.block_size;
    const std::int64_t rounded = std::min(round_up(inside, grain), shape_.block_size);
    add_parts(loads_, sequence.blocks, 0, sequence.first - inside + rounded);
  }
  join(loads_);
}

// Host memory for new tokens is allocated here, since it cannot be during capture.
void LayerwiseCache::choose_newest(std::span<const StepSequence> sequences) {
  newest_.clear();
  for (const StepSequence& sequence : sequences) {
    const auto index = static_cast<std::size_t>(sequence.first / shape_.block_size);
    newest_.push_back(sequence.blocks[index]);
    host_.part(newest_.back(), 0);
  }
}

void LayerwiseCache::choose_graph_key() {
  if (graph_key_ != 0 && loads_ == key_loads_ && newest_ == key_newest_) return;
  ++graph_key_;
  // The preloaded layers stay valid as long as the loads are the same.
  preloaded_ = preloaded_ && loads_ == key_loads_;
  key_loads_ = loads_;
  key_newest_ = newest_;
}

// Loads the first layers before the pass. They wait for all work of earlier steps, including the
// last write to the host, so loads inside the pass need not wait for it: with as many buffers as
// layers, all layers are preloaded; with fewer, each buffer is waited for, including that of the
// last layer.
void LayerwiseCache::preload(Stream& stream) {
  const auto ahead = std::min(shape_.layers, static_cast<std::int64_t>(buffers_.size()));
  for (std::int64_t layer = 0; layer < ahead; ++layer) {
    load(layer);
    wait(LayerwiseWait::pass_of_load, stream, *buffer_of(layer).loaded);
  }
  traffic_.to_device += bytes_of(loads_, ahead);
}

// Loads the next layer of this buffer: one of this pass, or its first one in the next pass. The
// wait adds the load stream to the capture.
void LayerwiseCache::leave_captured_layer(Stream& stream) {
  const auto buffers = static_cast<std::int64_t>(buffers_.size());
  const std::int64_t next = layer_ + buffers < shape_.layers ? layer_ + buffers : layer_ % buffers;
  Event& left = *left_[static_cast<std::size_t>(layer_)];
  left.record(stream);
  wait(LayerwiseWait::load_of_leaving, *load_stream_, left);
  copy_loads(next);
  arrived_[static_cast<std::size_t>(next)]->record(*load_stream_);
}

// --- Steps that decode on the host ---

// No work of such a step depends on lengths known only to the host.
StepPlan LayerwiseCache::begin_host_step(const KvStep& step, Stream& stream) {
  capturable_ = false;
  if (writing_) {
    all_written_->record(*write_stream_);
    wait(LayerwiseWait::pass_of_writings, stream, *all_written_);
    writing_ = false;
  }
  loads_.clear();
  choose_newest(step.sequences);
  choose_graph_key();
  tables_->update(host_, stream);
  traffic_.to_host += bytes_of(step.sequences.size(), shape_.layers);
  return {.capturable = step.may_capture, .graph_key = graph_key_};
}

GatheredQuest::Blocks LayerwiseCache::host_blocks(std::int64_t layer) const {
  return {.on_device = view_in(buffers_.front(), layer),
          .block_map = tables_->no_slots(),
          .addresses = tables_->addresses(layer),
          .offset = 0};
}

kernels::KvView LayerwiseCache::group_of(BlockId block, std::int64_t layer) {
  return host_.group_view(block, layer);
}

// Loads of later steps wait for these events, unless those steps are captured or decode on the
// host.
void LayerwiseCache::end_step(Stream& stream) {
  if (!capturable_ && !on_host_) return;
  for (BufferState& buffer : buffers_) buffer.computed->record(stream);
}

}  // namespace nvllm::kvcache
