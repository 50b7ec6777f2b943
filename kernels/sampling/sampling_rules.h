// What sampling kernels know of a sequence: a slot's rules, as they lie in device memory.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

struct SlotParams {
  static constexpr std::uint32_t kChangesLogits = 1;    // logits change before they are judged
  static constexpr std::uint32_t kTruncates = 2;    // min_p, top_k or top_p
  static constexpr std::uint32_t kAllowed = 4;    // only some ids are allowed
  static constexpr std::uint32_t kPenalties = 8;  // tokens that are there already

  std::uint64_t seed = 0;
  float inverse_temperature = 1;  // 0: the highest logit is drawn
  float log_min_p = 0;            // of e; only read if has_min_p
  std::uint32_t has_min_p = 0;
  std::int32_t top_k = 0;   // 0: off
  std::uint32_t top_p = 0;  // in units of 2^-32; 0: off
  std::uint32_t flags = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::int32_t prompt_length = 0;
  std::int32_t min_length = 0;
  std::int32_t logprobs = -1;

  // How long the slot's lists are; they lie one after the other.
  std::int32_t ends = 0;        // ids
  std::int32_t biases = 0;      // ids, then as many floats
  std::int32_t bad_words = 0;   // where each ends, counted from the first's first token; then
  std::int32_t bad_tokens = 0;  // all their tokens

  std::int32_t list_words() const { return ends + 2 * biases + bad_words + bad_tokens; }
};
static_assert(sizeof(SlotParams) == 72);

// A step's rows, as sampling kernels see them.
struct SamplingRows {
  TensorView logits;          // [rows, own part of the vocabulary], float32, rows apart
  TensorView slots;           // [rows], int32; negative: nothing is drawn
  TensorView positions;       // [rows], int32
  TensorView params;           // [slots, sizeof(SlotParams)], uint8
  std::int64_t first_id = 0;  // of the own part
  // Where logits are that apply_penalties() changed, if not in place: [rows, own part], rows apart.
  TensorView changed_logits{};

  std::int64_t rows() const { return logits.shape[0]; }
  std::int64_t own() const { return logits.shape[1]; }
};

// An Error that names what does not fit; `operation` is whose.
void check_sampling_rows(const SamplingRows& rows, const char* operation);

// The same as plain pointers.
struct SamplingRowsView {
  const float* logits;
  const float* changed_logits;  // nullptr: in place
  const std::int32_t* slots;
  const std::int32_t* positions;
  const SlotParams* params;
  std::int64_t rows, own, stride, changed_stride;
  std::uint32_t first_id;

  SamplingRowsView() = default;
  explicit SamplingRowsView(const SamplingRows& args)
      : logits(args.logits.as<float>()),
        changed_logits(args.changed_logits.as<float>()),
        slots(args.slots.as<std::int32_t>()),
        positions(args.positions.as<std::int32_t>()),
        params(args.params.as<SlotParams>()),
        rows(args.rows()),
        own(args.own()),
        stride(args.logits.stride[0]),
        changed_stride(args.changed_logits.stride[0]),
        first_id(static_cast<std::uint32_t>(args.first_id)) {}

#ifdef __CUDACC__
  __host__ __device__
#endif
      const float*
      sampled_logits(std::int64_t row, std::uint32_t flags) const {
    if (changed_logits != nullptr && (flags & SlotParams::kChangesLogits) != 0) {
      return changed_logits + row * changed_stride;
    }
    return logits + row * stride;
  }
};

// Writes words to device memory in the stream's order. They travel with the call: `words`, ordinary memory that is
// not pinned, may go when it returns, and nobody waits. For slots' rules and lists, and a step's numbers; not for
// graphs, which would keep the words.
void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count, Stream& stream);

}  // namespace nvllm::kernels
