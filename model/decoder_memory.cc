// DecoderMemory: how much a decoder takes beside its weights, and where in it everything lies.
#include "model/decoder.h"

namespace nvllm::model {
namespace {

using layers::Scratch;

// Whether GEMMs norm the residual stream that they read, and add to it.
bool gemms_add(const Decoder& decoder, const DecoderLimits& limits) {
  return decoder.shard().ranks == 1 && !decoder.config().unfused_norms() && !limits.invariant &&
         !decoder.shard().tp_invariant;
}

// Rows of a deferred norm's sums of squares; where GEMMs do not norm, none is deferred.
std::int64_t squares_of(const Decoder& decoder, const DecoderLimits& limits) {
  return gemms_add(decoder, limits) ? decoder.config().hidden_size / kernels::kSquaresColumns : 0;
}

// Columns of a row of logits; none on stages without the head.
std::int64_t logit_columns(const Decoder& decoder) {
  return decoder.has_head() ? decoder.head().stride() : 0;
}

// Columns of all per-layer inputs together.
std::int64_t per_layer_columns(const Decoder& decoder) {
  return decoder.config().layers * decoder.config().per_layer_width;
}

}  // namespace

std::size_t DecoderMemory::bytes(const Decoder& decoder, const DecoderLimits& limits) {
  const auto stream = [&](std::int64_t rows) {
    return Scratch::bytes_of(decoder.dtype(), rows, decoder.config().hidden_size);
  };
  return stream(limits.rows) +
         stream(limits.rows_at_once()) * (gemms_add(decoder, limits) ? 1 : 2) +
         Scratch::bytes_of(DType::f32, limits.logit_rows, logit_columns(decoder)) +
         Scratch::bytes_of(DType::f32, squares_of(decoder, limits), kernels::kSquaresRows) +
         Scratch::bytes_of(decoder.dtype(), limits.rows, per_layer_columns(decoder)) +
         decoder.scratch_bytes(limits);
}

std::size_t DecoderMemory::state_bytes(const Decoder& decoder, std::int64_t slots) {
  std::size_t bytes = 0;
  for (const layers::DecoderLayer& layer : decoder.layers_) {
    if (layer.delta_net() != nullptr)
      bytes += layer.delta_net()->state_bytes(slots, decoder.dtype());
  }
  return bytes;
}

TensorView DecoderMemory::logits(const Decoder& decoder, std::int64_t rows) const {
  TensorView logits = logits_.rows(0, rows);
  logits.shape[1] = decoder.head().vocabulary().size();  // rows stay where they are
  return logits;
}

DecoderMemory::DecoderMemory(const Decoder& decoder, const DecoderLimits& limits, Backend& backend)
    : limits_(limits),
      activations_(backend.allocate(MemoryKind::device, bytes(decoder, limits), "activations")),
      rope_(decoder.config().rope, decoder.config().rotary_dim(), limits.positions, backend) {
  if (const auto& local = decoder.config().local_rope) {
    local_rope_.emplace(*local, decoder.config().local_rotary_dim(), limits.positions, backend);
  }
  const std::int64_t hidden = decoder.config().hidden_size;
  Scratch all(activations_.data(), activations_.bytes());
  sum_ = all.allocate(decoder.dtype(), limits.rows, hidden);
  normed_ = all.allocate(decoder.dtype(), limits.rows_at_once(), hidden);
  part_ = gemms_add(decoder, limits) ? TensorView(nullptr, decoder.dtype(), {0, hidden})
                                     : all.allocate(decoder.dtype(), limits.rows_at_once(), hidden);
  squares_ = all.allocate(DType::f32, squares_of(decoder, limits), kernels::kSquaresRows);
  logits_ = all.allocate(DType::f32, limits.logit_rows, logit_columns(decoder));
  per_layer_ = all.allocate(decoder.dtype(), limits.rows, per_layer_columns(decoder));
  const std::size_t scratch = decoder.scratch_bytes(limits);
  scratch_ = Scratch(all.allocate(DType::u8, 1, static_cast<std::int64_t>(scratch)).data, scratch);
  make_states(decoder, limits.state_slots, backend);
}

void DecoderMemory::make_states(const Decoder& decoder, std::int64_t slots, Backend& backend) {
  if (decoder.config().linear_attention.key_heads == 0) return;
  const std::size_t bytes = state_bytes(decoder, slots);
  state_memory_ = backend.allocate(MemoryKind::device, bytes, "linear attention states");
  Scratch all(state_memory_.data(), bytes);
  for (const layers::DecoderLayer& layer : decoder.layers_) {
    states_.push_back(layer.delta_net() == nullptr
                          ? layers::DeltaNetState{}
                          : layer.delta_net()->state_in(all, slots, decoder.dtype()));
  }
}

}  // namespace nvllm::model
