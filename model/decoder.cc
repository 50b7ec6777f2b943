// The forward pass of a Decoder.
#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace nvllm::model {
namespace {

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
  batch.slot_mapping = all.slot_mapping.rows(part.first_row, part.rows);
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

}  // namespace

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
  const TensorView sum = memory.hidden_.rows(first_row, rows.rows());
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
  return {.hidden = memory.hidden_.rows(first_row, rows),
          .normed = memory.normed_.rows(0, rows),
          .partial = memory.partial_.rows(0, rows),
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
  stream.partial = memory.partial_.rows(part.first_row, part.rows);
  stream.squares = {};
  stream.overlapped = ipc::OverlappedRows{.slot = slot, .first_row = part.first_row};
  return stream;
}

}  // namespace nvllm::model
