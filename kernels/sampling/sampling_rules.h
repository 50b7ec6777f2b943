// What sampling kernels know of a sequence: a slot's rules, as they lie in device memory.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

struct SlotRules {
  static constexpr std::uint32_t kAdjusts = 1;    // logits change before they are judged
  static constexpr std::uint32_t kFilters = 2;    // min_p, top_k or top_p
  static constexpr std::uint32_t kAllowed = 4;    // only some ids are allowed
  static constexpr std::uint32_t kPenalizes = 8;  // tokens that are there already

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
  std::int32_t least_length = 0;
  std::int32_t logprobs = -1;

  // How long the slot's lists are; they lie one after the other.
  std::int32_t ends = 0;        // ids
  std::int32_t biases = 0;      // ids, then as many floats
  std::int32_t bad_words = 0;   // where each ends, counted from the first's first token; then
  std::int32_t bad_tokens = 0;  // all their tokens

  std::int32_t list_words() const { return ends + 2 * biases + bad_words + bad_tokens; }
};
static_assert(sizeof(SlotRules) == 72);

// A step's rows, as sampling kernels see them.
struct SamplingRows {
  TensorView logits;          // [rows, own part of the vocabulary], float32, rows apart
  TensorView slots;           // [rows], int32; negative: nothing is drawn
  TensorView positions;       // [rows], int32
  TensorView rules;           // [slots, sizeof(SlotRules)], uint8
  std::int64_t first_id = 0;  // of the own part
  // Where logits are that adjust_logits() changed, if not in place: [rows, own part], rows apart.
  TensorView adjusted{};

  std::int64_t rows() const { return logits.shape[0]; }
  std::int64_t own() const { return logits.shape[1]; }
};

// An Error that names what does not fit; `operation` is whose.
void check_sampling_rows(const SamplingRows& rows, const char* operation);

// The same as plain pointers.
struct RowsView {
  const float* logits;
  const float* adjusted;  // nullptr: in place
  const std::int32_t* slots;
  const std::int32_t* positions;
  const SlotRules* rules;
  std::int64_t rows, own, stride, adjusted_stride;
  std::uint32_t first_id;

  RowsView() = default;
  explicit RowsView(const SamplingRows& args)
      : logits(args.logits.as<float>()),
        adjusted(args.adjusted.as<float>()),
        slots(args.slots.as<std::int32_t>()),
        positions(args.positions.as<std::int32_t>()),
        rules(args.rules.as<SlotRules>()),
        rows(args.rows()),
        own(args.own()),
        stride(args.logits.stride[0]),
        adjusted_stride(args.adjusted.stride[0]),
        first_id(static_cast<std::uint32_t>(args.first_id)) {}

#ifdef __CUDACC__
  __host__ __device__
#endif
      const float*
      judged(std::int64_t row, std::uint32_t flags) const {
    if (adjusted != nullptr && (flags & SlotRules::kAdjusts) != 0) {
      return adjusted + row * adjusted_stride;
    }
    return logits + row * stride;
  }
};

// Writes words to device memory in the stream's order. They travel with the call: `words`, ordinary memory that is
// not pinned, may go when it returns, and nobody waits. For slots' rules and lists, and a step's numbers; not for
// graphs, which would keep the words.
void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count, Stream& stream);

}  // namespace nvllm::kernels
