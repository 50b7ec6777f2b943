#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "model/layer_config.h"

namespace nvllm::model {
namespace {

// In the last layer's MLP block, up to this many rows whose logits are needed run without the
// others. More of them, in steps that decode sequences along with prompts, would save less, and
// need GEMMs with numbers of rows that occur in no other layer.
constexpr std::int64_t kMaxSelectedRows = 64;

using layers::Scratch;

// The sum of all rows; the parts are contiguous.
TensorView whole_sum(std::span<layers::ResidualStream> parts, const layers::Context& context) {
  TensorView whole = take_gathered_hidden(parts.front(), context);
  for (layers::ResidualStream& part : parts.subspan(1)) {
    const TensorView sum = take_gathered_hidden(part, context);
    NVLLM_CHECK(sum.data == whole.as<std::byte>() + whole.bytes(), "parts lie apart");
    whole.shape[0] += sum.shape[0];
  }
  return whole;
}

// A part of a batch as a batch of its own.
layers::Batch batch_of(const layers::Batch& all, const layers::MicroBatch& part) {
  layers::Batch batch = all;
  batch.parts = {};
  batch.tokens = all.tokens.rows(part.first_row, part.rows);
  batch.positions = all.positions.rows(part.first_row, part.rows);
  batch.slots = all.slots.rows(part.first_row, part.rows);
  if (all.block_table.data != nullptr) {
    batch.block_table = all.block_table.rows(part.first_sequence, part.sequences);
  }
  NVLLM_CHECK(all.window_block_table.data == nullptr, "parts have no group of windows");
  if (all.state_slots.data != nullptr) {
    batch.state_slots = all.state_slots.rows(part.first_sequence, part.sequences);
  }
  batch.query_start = part.query_start;
  batch.kv_length = part.kv_length;
  batch.max_query_rows = part.max_query_rows;
  batch.max_kv_length = part.max_kv_length;
  batch.decode_sequences = part.decode_sequences;
  return batch;
}

// The callback after each layer of a pass that is not split into parts. Decode steps are short, and
// may be graphs, like all steps of GPUs, which would wait for the host there.
std::function<void()> progress_of(const layers::Batch& batch, const ForwardResources& device) {
  const bool reports = device.link != nullptr && device.stream.kind() == DeviceKind::cpu;
  return reports && batch.max_query_rows > 1 ? device.progress : nullptr;
}

// As a number of the type in which embeddings are multiplied by it.
float rounded(float value, DType dtype) {
  switch (dtype) {
    case DType::bf16: return to_float(from_float<Bf16>(value));
    case DType::f16: return to_float(from_float<F16>(value));
    default: return value;
  }
}

}  // namespace

bool Decoder::quantized() const {
  return std::ranges::any_of(parameters_, [](const layers::Parameter* parameter) {
    return parameter->quantization.has_value();
  });
}

// The norm is on every stage: its weight is small, and by it the parts that a stage's ranks have
// added last are summed (layers::sum).
Decoder::Decoder(const ModelConfig& config, layers::Shard shard, DType dtype, layers::Stage stage)
    : config_(config),
      shard_(shard),
      stage_(stage),
      own_layers_(layers::layers_of(config.layers, stage)),
      dtype_(dtype),
      embedding_("embedding", config.names.embedding, config.vocab_size, config.hidden_size, shard,
                 rounded(config.embedding_scale, dtype)),
      norm_("norm", config.names.final_norm, config.hidden_size, config.rms_norm_eps,
            config.norm_weight_offset) {
  NVLLM_CHECK(stage.stages == 1 || (config.per_layer_width == 0 && config.kv_shared_layers == 0),
              "what crosses from layer to layer beside the residual stream stays in one stage");
  if (config.per_layer_width > 0) {
    const TensorNames& names = config.names;
    const float scale = std::sqrt(static_cast<float>(config.per_layer_width));
    per_layer_.emplace("per_layer",
                       layers::PerLayerEmbeddingConfig{.table = names.per_layer_table,
                                                       .projection = names.per_layer_projection,
                                                       .norm = names.per_layer_norm,
                                                       .vocabulary = config.vocab_size,
                                                       .hidden = config.hidden_size,
                                                       .layers = config.layers,
                                                       .width = config.per_layer_width,
                                                       .table_scale = rounded(scale, dtype),
                                                       .epsilon = config.rms_norm_eps},
                       shard);
  }
  const std::int64_t kv_before = config.kv_layers_before(own_layers_.begin);
  for (std::int64_t n = own_layers_.begin; n < own_layers_.end; ++n) {
    layers_.emplace_back(str("layers.", n), layer_config(config, n), shard);
    kv_layers_.push_back(config.kv_layers_before(config.kv_source(n)) - kv_before);
  }
  if (stage.last() && config.tied_embeddings) {
    head_.emplace(embedding_, config.logit_cap);
  } else if (stage.last()) {
    head_.emplace("head", config.names.head, config.vocab_size, config.hidden_size, shard,
                  config.logit_cap);
  }
  declare_parameters();
}

// Tied embeddings are on both ends.
void Decoder::declare_parameters() {
  if (stage_.first() || (stage_.last() && config_.tied_embeddings)) {
    embedding_.declare(parameters_);
  }
  if (per_layer_) per_layer_->declare(parameters_);
  for (layers::DecoderLayer& layer : layers_) layer.declare(parameters_);
  norm_.declare(parameters_);
  if (head_) head_->declare(parameters_);
}

std::int64_t Decoder::own_kv_layers() const {
  return config_.kv_layers_before(own_layers_.end) - config_.kv_layers_before(own_layers_.begin);
}

// The layers use it in turn, then the rows of the residual stream whose logits are wanted, with the
// last layer's MLP block.
std::size_t Decoder::scratch_bytes(const DecoderLimits& limits) const {
  std::size_t layer = 0;  // the largest: some may have experts, and others an MLP
  for (const layers::DecoderLayer& each : layers_) {
    layer = std::max(layer, each.scratch_bytes(limits.rows_at_once(), dtype_));
  }
  if (per_layer_) {
    layer = std::max(layer, per_layer_->scratch_bytes(limits.rows_at_once(), dtype_));
  }
  if (!head_) return layer;
  return std::max(layer, 3 * Scratch::bytes_of(dtype_, limits.logit_rows, config_.hidden_size) +
                             layers_.back().mlp_scratch_bytes(
                                 std::min(limits.logit_rows, kMaxSelectedRows), dtype_));
}

kvcache::BlockShape Decoder::block_shape(std::int64_t block_size, DType dtype) const {
  kvcache::BlockShape shape{.layers = own_kv_layers(),
                            .block_size = block_size,
                            .kv_heads = heads().kv.size(),
                            .head_dim = config_.head_dim,
                            .dtype = dtype};
  if (!config_.differs_in_heads() || shape.layers == 0) return shape;
  const auto elements = [](const kvcache::BlockShape::Heads& heads) {
    return heads.kv_heads * heads.head_dim;
  };
  for (std::int64_t n = own_layers_.begin; n < own_layers_.end; ++n) {
    if (!config_.has_kv(n)) continue;
    const layers::DecoderLayer& layer = layers_[static_cast<std::size_t>(n - own_layers_.begin)];
    shape.by_layer.push_back({layer.heads().kv.size(), layer.head_dim()});
  }
  const auto largest = *std::ranges::max_element(shape.by_layer, {}, elements);
  shape.kv_heads = largest.kv_heads, shape.head_dim = largest.head_dim;
  return shape;
}

std::int64_t Decoder::max_head_values() const {
  std::int64_t values = 0;
  for (const layers::DecoderLayer& layer : layers_) {
    values = std::max(values, layer.heads().q.size() * layer.head_dim());
  }
  return values;
}

void Decoder::check(const layers::Batch& batch, const DecoderLimits& limits) const {
  NVLLM_CHECK(config_.linear_attention.key_heads == 0 ||
                  (batch.state_slots.data != nullptr && limits.state_slots > 0),
              "no slots for states");
  if (batch.rows() > limits.rows || batch.logits() > limits.logit_rows) {
    fail("a batch of ", batch.rows(), " rows and the logits of ", batch.logits(),
         " exceeds what memory was made for, ", limits.rows, " and ", limits.logit_rows);
  }
  NVLLM_CHECK(!limits.overlap || limits.micro_batch_rows == 0,
              "parts are overlapped, or come one by one");
  NVLLM_CHECK(batch.parts.empty() || limits.overlap ? batch.rows() <= limits.rows_at_once()
                                                    : batch.logit_rows.data != nullptr,
              batch.rows(), " rows in ", batch.parts.size(), " parts");
  for (const layers::MicroBatch& part : batch.parts) {
    NVLLM_CHECK_LE(part.rows, limits.rows_at_once());
  }
}

TensorView Decoder::forward(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
                            const ForwardResources& device, const Observer& observer) const {
  const std::optional<layers::LogitsCall> head = forward_to_head(
      batch, kv, memory, device, observer, /*all_rows=*/static_cast<bool>(observer));
  if (!head) return {};
  head->run(device.gemm, device.stream);
  return head->gemm.operands.out;
}

std::optional<layers::LogitsCall> Decoder::forward_to_head(const layers::Batch& batch,
                                                           kvcache::KvCache& kv,
                                                           DecoderMemory& memory,
                                                           const ForwardResources& device) const {
  return forward_to_head(batch, kv, memory, device, {}, /*all_rows=*/false);
}

std::optional<layers::LogitsCall> Decoder::forward_to_head(
    const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
    const ForwardResources& device, const Observer& observer, bool all_rows) const {
  check(batch, memory.limits_);
  const layers::Context context{device.stream, device.gemm, memory.scratch_, device.communicator,
                                memory.limits_.invariant};
  NVLLM_CHECK(context.alone() == (shard_.ranks == 1), shard_.ranks, " ranks");
  NVLLM_CHECK((device.link == nullptr) == (stage_.stages == 1), stage_.stages, " stages");

  kv.begin_pass(context.stream);
  layers::ResidualStream stream = stream_of(memory, 0, batch.rows());
  const Scratch::Frame frame(context.scratch);
  const bool at_once = batch.parts.empty() || memory.limits_.overlap;
  const bool prune_last_layer = at_once && head_ && !all_rows && batch.logits() < batch.rows() &&
                                batch.logits() <= kMaxSelectedRows &&
                                !per_layer_;  // whose inputs are of all rows
  if (!stage_.first()) device.link->receive(stream.hidden, context.stream);
  const bool in_two = batch.parts.size() == ipc::OverlappedRows::kSlots;
  if (memory.limits_.overlap && in_two && can_overlap() && !observer) {
    run_overlapped(stream, batch, kv, memory, context, prune_last_layer);
  } else if (at_once) {
    run_layers(stream, batch, kv, memory, context, observer, progress_of(batch, device),
               prune_last_layer);
  } else {
    run_in_parts(batch, kv, memory, context, device.progress);
  }
  if (!head_) {
    device.link->send(complete_hidden(stream, norm_, context), context.stream);
    kv.end_pass(context.stream);
    return std::nullopt;
  }
  if (batch.logit_rows.data != nullptr && !prune_last_layer)
    select_rows(stream, batch.logit_rows, context);
  if (observer) observer("norm", read_normed(stream, norm_, context));
  const layers::LogitsCall head = head_->call(memory.logits(*this, batch.logits()),
                                              norm_operands(stream, norm_, context), context);
  kv.end_pass(context.stream);
  return head;
}

void Decoder::run_layers(layers::ResidualStream& stream, const layers::Batch& batch,
                         kvcache::KvCache& kv, DecoderMemory& memory,
                         const layers::Context& context, const Observer& observer,
                         const std::function<void()>& progress, bool prune_last_layer) const {
  if (stage_.first()) embed(batch, 0, memory, context);
  if (observer && stage_.first()) observer("embed", stream.hidden);
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    const bool last = n + 1 == layers_.size();
    const auto layer = static_cast<std::int64_t>(n);
    layers::DecoderLayer::Pass pass = pass_of(batch, 0, kv, memory, layer);
    pass.next = last ? nullptr : &layers_[n + 1];
    pass.next_layer = last ? 0 : kv_layers_[n + 1];
    pass.select_logit_rows = last && prune_last_layer;
    layers_[n].forward(stream, pass, context);
    if (observer) {
      observer(str("layer", own_layers_.begin + layer), complete_hidden(stream, norm_, context));
    }
    if (progress) context.stream.host_call(progress);
  }
}

bool Decoder::can_overlap() const {
  const auto can_overlap = [](const layers::DecoderLayer& layer) { return layer.can_overlap(); };
  return shard_.ranks > 1 && stage_.stages == 1 && layers_.size() > 1 && !config_.unfused_norms() &&
         !shard_.tp_invariant && std::ranges::all_of(layers_, can_overlap);
}

// Each part's keys and values are stored before a later part attends to them.
void Decoder::run_overlapped(layers::ResidualStream& stream, const layers::Batch& batch,
                             kvcache::KvCache& kv, DecoderMemory& memory,
                             const layers::Context& context, bool prune_last_layer) const {
  embed(batch, 0, memory, context);
  constexpr std::size_t kParts = ipc::OverlappedRows::kSlots;
  std::array<layers::Batch, kParts> rows;
  std::array<layers::ResidualStream, kParts> streams;
  for (std::size_t part = 0; part < kParts; ++part) {
    rows[part] = batch_of(batch, batch.parts[part]);
    streams[part] = overlapped_stream_of(memory, batch.parts[part], static_cast<int>(part));
  }
  const std::size_t last = layers_.size() - 1;
  for (std::size_t n = 0; n < last; ++n) {
    const auto pass_of_part = [&](std::size_t part) {
      layers::DecoderLayer::Pass pass = pass_of(rows[part], batch.parts[part].first_row, kv, memory,
                                                static_cast<std::int64_t>(n));
      pass.next = &layers_[n + 1];
      pass.next_layer = kv_layers_[n + 1];
      pass.other = &streams[1 - part];
      return pass;
    };
    for (std::size_t part = 0; part < kParts; ++part) {
      layers_[n].forward_attention(streams[part], pass_of_part(part), context);
    }
    for (std::size_t part = 0; part < kParts; ++part) {
      if (n + 1 == last) streams[part].gathers = ipc::Gathered::sum;
      layers_[n].forward_mlp(streams[part], pass_of_part(part), context);
    }
  }
  begin_all_gather(&streams[1], context);
  stream.hidden = whole_sum(streams, context);
  layers::DecoderLayer::Pass pass = pass_of(batch, 0, kv, memory, static_cast<std::int64_t>(last));
  pass.select_logit_rows = prune_last_layer;
  layers_[last].forward(stream, pass, context);
}

// Rows of the pass, the first of which is its row `first_row`: where the residual stream starts,
// and the inputs of layers.
void Decoder::embed(const layers::Batch& rows, std::int64_t first_row, DecoderMemory& memory,
                    const layers::Context& context) const {
  const TensorView sum = memory.sum_.rows(first_row, rows.rows());
  embedding_.forward(sum, rows.tokens, context);
  if (!per_layer_) return;
  per_layer_->forward(memory.per_layer_.rows(first_row, rows.rows()), rows.tokens, sum, context);
}

// In parts no norm is deferred from one layer to the next: other parts come between them.
void Decoder::run_in_parts(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
                           const layers::Context& context,
                           const std::function<void()>& progress) const {
  for (const layers::MicroBatch& part : batch.parts) {
    if (stage_.first()) embed(batch_of(batch, part), part.first_row, memory, context);
  }
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    for (const layers::MicroBatch& part : batch.parts) {
      layers::ResidualStream stream = stream_of(memory, part.first_row, part.rows);
      stream.squares = {};
      const layers::Batch rows = batch_of(batch, part);
      const auto layer = static_cast<std::int64_t>(n);
      layers_[n].forward(stream, pass_of(rows, part.first_row, kv, memory, layer), context);
      complete_hidden(stream, norm_,
                      context);  // what is pending is in memory that the next part needs
    }
    if (progress) context.stream.host_call(progress);
  }
}

void Decoder::tune(const layers::Batch& batch, kvcache::KvCache& kv, DecoderMemory& memory,
                   const ForwardResources& device) const {
  device.gemm.record();
  // All rows, since GEMMs of a few rows of one layer would say nothing of those of all layers.
  const auto head = forward_to_head(batch, kv, memory, device, {}, /*all_rows=*/true);
  if (head) head->run(device.gemm, device.stream);
  if (device.communicator != nullptr) device.communicator->wait(device.stream);
  device.gemm.tune_recorded(device.stream);
  device.stream.synchronize();
}

layers::DecoderLayer::Pass Decoder::pass_of(const layers::Batch& rows, std::int64_t first_row,
                                            kvcache::KvCache& kv, const DecoderMemory& memory,
                                            std::int64_t layer) const {
  TensorView per_layer;
  if (per_layer_) {
    per_layer = memory.per_layer_.rows(first_row, rows.rows());
    per_layer.data =
        per_layer.as<std::byte>() +
        static_cast<std::size_t>(layer * config_.per_layer_width) * size_of(per_layer.dtype);
    per_layer.shape[1] = config_.per_layer_width;  // rows stay where they are
  }
  const bool local = config_.is_local(own_layers_.begin + layer);
  return {.batch = rows,
          .kv = kv,
          .layer = kv_layers_[static_cast<std::size_t>(layer)],
          .cos_sin = local ? memory.local_rope_->cos_sin() : memory.rope_.cos_sin(),
          .state = memory.states_.empty() ? layers::DeltaNetState{}
                                          : memory.states_[static_cast<std::size_t>(layer)],
          .per_layer = per_layer};
}

// The residual stream of some rows; what is not in the sum is memory that other rows use, too.
layers::ResidualStream Decoder::stream_of(const DecoderMemory& memory, std::int64_t first_row,
                                          std::int64_t rows) const {
  const bool invariant = memory.limits_.invariant && shard_.ranks == 1 && !shard_.tp_invariant;
  // Which comes first, a bias or a residual, differs among GEMMs.
  const bool biased = config_.output_bias || config_.mlp_bias;
  return {.hidden = memory.sum_.rows(first_row, rows),
          .normed = memory.normed_.rows(0, rows),
          .partial = memory.part_.rows(0, rows),
          .squares = memory.squares_,
          .unfused_norms = config_.unfused_norms() || shard_.tp_invariant || (invariant && biased),
          .out_of_place = invariant && !biased && !config_.unfused_norms()};
}

// Beside other rows, which have other memory.
layers::ResidualStream Decoder::overlapped_stream_of(const DecoderMemory& memory,
                                                     const layers::MicroBatch& part,
                                                     int slot) const {
  layers::ResidualStream stream = stream_of(memory, part.first_row, part.rows);
  stream.normed = memory.normed_.rows(part.first_row, part.rows);
  stream.partial = memory.part_.rows(part.first_row, part.rows);
  stream.squares = {};
  stream.overlapped = ipc::OverlappedRows{.slot = slot, .first_row = part.first_row};
  return stream;
}

std::size_t Decoder::rope_bytes(std::int64_t positions) const {
  const std::int64_t local = config_.local_rope ? config_.local_rotary_dim() : 0;
  return static_cast<std::size_t>(positions * (config_.rotary_dim() + local)) * sizeof(float);
}

}  // namespace nvllm::model
