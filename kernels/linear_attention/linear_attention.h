// What a Gated DeltaNet layer computes in attention's place: causal_conv() over the rows of each
// sequence, then gated_delta_rule() with the norm and gate of its output. Each throws an Error
// that names the argument that does not fit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// The assignment of a step's rows to sequences, and the state slot of each sequence.
//
// A sequence's rows are the newest of its tokens. If they include its first one, its state is zero,
// whatever memory holds; without rows the state does not change. A sequence without a slot is
// padding: its rows are zero.
struct StateRows {
  TensorView query_start;  // [sequences + 1], int32: the first row of each
  TensorView kv_length;    // [sequences], int32: tokens including these rows
  TensorView slots;        // [sequences], int32: of the state; negative: padding

  std::int64_t sequences() const { return slots.shape[0]; }
  std::int64_t begin(std::int64_t sequence) const {
    return query_start.as<std::int32_t>()[sequence];
  }
  std::int64_t end(std::int64_t sequence) const { return begin(sequence + 1); }
  std::int64_t slot(std::int64_t sequence) const { return slots.as<std::int32_t>()[sequence]; }
  bool starts(std::int64_t sequence) const {
    return kv_length.as<std::int32_t>()[sequence] == end(sequence) - begin(sequence);
  }
};

// --- the causal depthwise convolution, with SiLU

// With x[t] the row of token t, and 0 before the first:
//   out[t][c] = silu(sum over i < width of weight[c][i] * x[t - (width - 1) + i][c])
// in float32, starting at i = 0, rounded once. A sequence's state is the last width - 1 rows of x
// that it has seen.
struct CausalConv {
  TensorView out;     // [rows, channels], dense
  TensorView x;       // [rows, channels]; any row stride
  TensorView weight;  // [channels, width]
  TensorView state;   // [slots, width - 1, channels], oldest first
  StateRows rows;
};

// Max. width.
inline constexpr std::int64_t kMaxConvWidth = 8;

// All tensors are of one type (float32, bfloat16 or float16) except those of `rows`.
void causal_conv(const CausalConv& args, Stream& stream);
void check_causal_conv(const CausalConv& args);

// --- the gated delta rule: the recurrence, with the norm and gate of its output

// Value head j reads key head j / (value heads / key heads). For q, k, v, z of a row's head, and
// the head's state S, [dk, dv]:
//   q = q / sqrt(sum of q² + 1e-6) / sqrt(dk),  k = k / sqrt(sum of k² + 1e-6)
//   beta = sigmoid(b),  decay = exp(-exp(a_log) * softplus(a + dt_bias))
//   d = beta * (v - decay * Sᵀk),  S = decay * S + k dᵀ,  o = Sᵀq
//   out = o / sqrt(mean of o² + epsilon) * norm * silu(z)
// Everything is in float32; out is rounded once. With `chunks`, on GPUs, parts of prompts are
// computed in chunks instead, with bfloat16 operands.
struct GatedDeltaRule {
  TensorView out;      // [rows, value_heads * dv], dense
  TensorView qkv;      // [rows, 2 * key_heads * dk + value_heads * dv], dense: all q, all k, all v
  TensorView z;        // [rows, value_heads * dv]; any row stride
  TensorView ba;       // [rows, 2 * value_heads], float32, dense: all b, all a
  TensorView a_log;    // [value_heads], float32
  TensorView dt_bias;  // [value_heads], float32
  TensorView norm;     // [dv], float32
  TensorView state;    // [slots, value_heads, dk, dv], float32
  StateRows rows;
  std::int64_t key_heads = 0;
  float epsilon = 1e-6f;
  TensorView chunks{};  // uint8 [delta_chunk_bytes() or more], scratch memory; optional

  std::int64_t value_heads() const { return state.shape[1]; }
  std::int64_t dk() const { return state.shape[2]; }
  std::int64_t dv() const { return state.shape[3]; }
};

// Max. dk and dv, which are multiples of 8.
inline constexpr std::int64_t kMaxStateDim = 256;

// Sequences with at least kMinChunkedRows rows are computed in chunks of kDeltaChunk, counted from
// their first row of the step, if there is memory for it (GatedDeltaRule::chunks) and
// has_delta_chunks() is true. The bits of such rows depend on the chunk boundaries; those of others
// do not.
inline constexpr std::int64_t kDeltaChunk = 64, kMinChunkedRows = 64;
inline constexpr std::int64_t kDeltaChunkDim = 128;      // dk and dv
inline constexpr std::int64_t kDeltaChunkBytes = 11024;  // per chunk and value head

constexpr bool has_delta_chunks(DeviceKind device, DType dtype, std::int64_t dk, std::int64_t dv) {
  return device == DeviceKind::cuda && dtype == DType::bf16 && dk == kDeltaChunkDim &&
         dv == kDeltaChunkDim;
}

// Upper bounds of the sequences that are computed in chunks, and of their chunks.
constexpr std::int64_t max_chunked_sequences(std::int64_t rows, std::int64_t sequences) {
  return std::min(sequences, rows / kMinChunkedRows);
}
constexpr std::int64_t max_delta_chunks(std::int64_t rows, std::int64_t sequences) {
  return rows / kDeltaChunk + max_chunked_sequences(rows, sequences);
}

// Layout of GatedDeltaRule::chunks: the plan, 8 bytes per sequence plus two entries; then the
// chunks.
constexpr std::int64_t delta_plan_bytes(std::int64_t rows, std::int64_t sequences) {
  return ((max_chunked_sequences(rows, sequences) + 2) * 8 + 255) / 256 * 256;
}
constexpr std::int64_t delta_chunk_bytes(std::int64_t rows, std::int64_t sequences,
                                         std::int64_t value_heads) {
  return delta_plan_bytes(rows, sequences) +
         max_delta_chunks(rows, sequences) * value_heads * kDeltaChunkBytes;
}

// out, qkv and z are of one type (float32, bfloat16 or float16). GPUs before compute capability 9.0
// support dv up to 128.
void gated_delta_rule(const GatedDeltaRule& args, Stream& stream);
void check_gated_delta_rule(const GatedDeltaRule& args);

}  // namespace nvllm::kernels
