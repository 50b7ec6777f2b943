// The inputs of sampling kernels: a slot's sampling parameters in device memory, and the rows of
// logits of a step.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/common/arguments.h"

namespace nvllm::kernels {

struct SlotParams {
  static constexpr std::uint32_t kChangesLogits = 1;  // apply_penalties() has something to do
  static constexpr std::uint32_t kTruncates = 2;      // min_p, top_k or top_p
  static constexpr std::uint32_t kAllowed = 4;        // only some ids are allowed
  static constexpr std::uint32_t kPenalties = 8;      // repetition, presence or frequency penalty

  std::uint64_t seed = 0;
  float inverse_temperature = 1;  // 0: greedy
  float log_min_p = 0;            // natural logarithm; only read if has_min_p
  std::uint32_t has_min_p = 0;
  std::int32_t top_k = 0;   // 0: off
  std::uint32_t top_p = 0;  // in units of 2^-32; 0: off
  std::uint32_t flags = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::int32_t prompt_length = 0;
  std::int32_t min_length = 0;  // while the sequence is shorter, its end tokens are banned
  std::int32_t logprobs = -1;   // -1: not requested

  // The lengths of the slot's lists, which are contiguous:
  std::int32_t ends = 0;        // ids of end tokens
  std::int32_t biases = 0;      // ids, then as many floats
  std::int32_t bad_words = 0;   // the end of each, relative to the first token of the first; then
  std::int32_t bad_tokens = 0;  // the tokens of all of them

  std::int32_t list_words() const { return ends + 2 * biases + bad_words + bad_tokens; }
};
static_assert(sizeof(SlotParams) == 72);

// A step's rows for sampling kernels.
struct SamplingRows {
  TensorView logits;          // [rows, this rank's part of the vocabulary], float32, any row stride
  TensorView slots;           // [rows], int32; negative: no token is sampled
  TensorView positions;       // [rows], int32
  TensorView params;          // [slots, sizeof(SlotParams)], uint8
  std::int64_t first_id = 0;  // of this rank's part
  // Where apply_penalties() writes the rows that it changes, if not in place: [rows, this rank's
  // part], any row stride.
  TensorView changed_logits{};

  std::int64_t rows() const { return logits.shape[0]; }
  std::int64_t own() const { return logits.shape[1]; }
};

// Throws an Error that names `operation` and the argument that does not fit.
inline void check_sampling_rows(const SamplingRows& args, const char* operation) {
  const Arguments check(operation);
  const std::int64_t rows = args.rows(), own = args.own();
  check.require(args.logits, "logits", DType::f32, {rows, own});
  if (own > 1 && rows > 0 && args.logits.stride[1] != 1) check.require_dense(args.logits, "logits");
  check.require_memory(args.logits, "logits");
  check.require_dense(args.slots, "slots", DType::i32, {rows});
  check.require_dense(args.positions, "positions", DType::i32, {rows});
  check.require_dense(args.params, "params", DType::u8,
                      {args.params.shape[0], static_cast<std::int64_t>(sizeof(SlotParams))});
  if (args.changed_logits.data == nullptr) return;
  check.require(args.changed_logits, "changed_logits", DType::f32, {rows, own});
  if (own > 1 && rows > 0 && args.changed_logits.stride[1] != 1) {
    check.require_dense(args.changed_logits, "changed_logits");
  }
}

}  // namespace nvllm::kernels
