// Support of tests: SamplingCase, rows of logits with slots and sampling parameters; and a call of
// sample_tokens().
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/sampling/sampling.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {

// Rows lie `gap` apart from each other, and their logits are ids [first_id, first_id + own).
struct SamplingCase {
  std::int64_t rows = 0, own = 0, gap = 0;
  std::int64_t first_id = 0;
  std::vector<float> logits;  // [rows, own + gap]
  std::vector<std::int32_t> slots, positions;
  std::vector<SlotParams> params;

  SamplingCase(std::int64_t rows, std::int64_t own, std::int64_t slots_there, unsigned seed = 1,
               std::int64_t gap = 0)
      : rows(rows), own(own), gap(gap), params(slots_there) {
    logits = normal_values<float>(rows * (own + gap), seed, 0, 4);
    for (std::int64_t row = 0; row < rows; ++row) {
      slots.push_back(static_cast<std::int32_t>((row * 7 + 3) % slots_there));
      positions.push_back(static_cast<std::int32_t>(row * 13 + 5));
    }
    for (std::int64_t slot = 0; slot < slots_there; ++slot) {
      params[slot].seed = seed * 1000003 + static_cast<std::uint64_t>(slot);
    }
  }

  float& at(std::int64_t row, std::int64_t i) { return logits[row * (own + gap) + i]; }
  SlotParams& params_of(std::int64_t row) { return params[slots[row]]; }

  // The part of the vocabulary [begin, end), as a rank would have it.
  SamplingCase part(std::int64_t begin, std::int64_t end) const {
    SamplingCase part = *this;
    part.own = end - begin;
    part.gap = 0;
    part.first_id = first_id + begin;
    part.logits.clear();
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = logits.data() + row * (own + gap);
      part.logits.insert(part.logits.end(), from + begin, from + end);
    }
    return part;
  }

  // Where it lies, here.
  SamplingRows here() {
    SamplingRows args;
    args.logits = TensorView(logits.data(), DType::f32, {rows, own});
    args.logits.stride[0] = own + gap;
    args.slots = TensorView(slots.data(), DType::i32, {rows});
    args.positions = TensorView(positions.data(), DType::i32, {rows});
    args.params = TensorView(params.data(), DType::u8,
                             {static_cast<std::int64_t>(params.size()), sizeof(SlotParams)});
    args.first_id = first_id;
    return args;
  }
};

// The same in a backend's memory; `shift`: of the logits, from an aligned address.
class PlacedCase {
 public:
  PlacedCase(Backend& backend, Stream& stream, const SamplingCase& from, std::int64_t shift = 0)
      : case_(from),
        logits(backend, stream, from.logits, shift),
        slots_(backend, stream, from.slots),
        positions_(backend, stream, from.positions),
        rules_(backend, stream, words_of(from.params)) {}

  SamplingRows args() const {
    SamplingRows args;
    args.logits = logits.view({case_.rows, case_.own});
    args.logits.stride[0] = case_.own + case_.gap;
    args.slots = slots_.view({case_.rows});
    args.positions = positions_.view({case_.rows});
    args.params = TensorView(rules_.data(), DType::u8,
                             {static_cast<std::int64_t>(case_.params.size()), sizeof(SlotParams)});
    args.first_id = case_.first_id;
    return args;
  }

 private:
  static std::vector<std::int32_t> words_of(const std::vector<SlotParams>& params) {
    std::vector<std::int32_t> words(params.size() * sizeof(SlotParams) / sizeof(std::int32_t));
    if (!params.empty()) std::memcpy(words.data(), params.data(), words.size() * sizeof(words[0]));
    return words;
  }

  SamplingCase case_;

 public:
  Placed<float> logits;

 private:
  Placed<std::int32_t> slots_, positions_, rules_;
};

// What sample_tokens() writes.
struct Sampled {
  std::vector<std::int32_t> tokens, last_tokens;
  bool operator==(const Sampled&) const = default;
};

struct SampleExtras {
  std::vector<float> thresholds;  // empty: none
  std::vector<std::int32_t> targets;
};

inline constexpr std::int32_t kUntouched = -777;

// Calls sample_tokens() twice, to see that the first call leaves the scratch as it found it.
inline Sampled sample(Backend& backend, const SamplingCase& c, const SampleExtras& extra = {},
                      std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  const PlacedCase there(backend, *stream, c, shift);
  Placed<std::int32_t> tokens(backend, *stream, std::vector<std::int32_t>(c.rows, kUntouched));
  Placed<std::int32_t> last(backend, *stream,
                            std::vector<std::int32_t>(c.params.size(), kUntouched));
  Placed<std::int64_t> scratch(backend, *stream,
                               std::vector<std::int64_t>(sample_scratch_words(c.rows)));
  const Placed<float> thresholds(backend, *stream, extra.thresholds);
  const Placed<std::int32_t> targets(backend, *stream, extra.targets);
  SampleTokens args;
  args.rows = there.args();
  if (!extra.thresholds.empty()) args.thresholds = thresholds.view({c.rows});
  if (!extra.targets.empty()) args.targets = targets.view({c.rows});
  args.scratch = scratch.view({sample_scratch_words(c.rows)});
  args.tokens = tokens.view({c.rows});
  args.last_tokens = last.view({static_cast<std::int64_t>(c.params.size())});
  sample_tokens(args, *stream);
  sample_tokens(args, *stream);
  CHECK(scratch.fetch() == std::vector<std::int64_t>(sample_scratch_words(c.rows)));
  return {tokens.fetch(), last.fetch()};
}

}  // namespace nvllm::kernels::testing
