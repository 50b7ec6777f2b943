// What backends share of scoring.
#pragma once

#include "kernels/common/on_both.h"
#include "kernels/sampling/log_probabilities.h"
#include "kernels/sampling/sampling_math.h"

namespace nvllm::kernels {

NVLLM_HOST_DEVICE bool wants_logprobs(const SamplingRowsView& rows, std::int64_t row, std::int32_t token) {
  if (token < 0) return false;
  return rows.slots[row] < 0 || rows.params[rows.slots[row]].logprobs >= 0;
}

// NaN is -infinity; zeros are equal.
NVLLM_HOST_DEVICE float plain_logit(float logit) {
  return value_of_key(order_key(logit));
}

// Infinite equals are at no distance.
NVLLM_HOST_DEVICE float logit_distance(float logit, float max_of) {
  return logit == max_of ? 0.0f : logit - max_of;
}

// A row's record (kernels/sampling/log_probabilities.h).
struct RecordView {
  std::int32_t* words;
  std::int64_t alternatives;

  NVLLM_HOST_DEVICE float number(int i) const {
    return float_of_bits(static_cast<std::uint32_t>(words[i]));
  }
  NVLLM_HOST_DEVICE void set(int i, float value) const {
    words[i] = static_cast<std::int32_t>(bits_of_float(value));
  }
  NVLLM_HOST_DEVICE float max_of() const { return number(0); }
  NVLLM_HOST_DEVICE float sum() const { return number(1); }
  NVLLM_HOST_DEVICE float token_logit() const { return number(2); }
  // As scored() has them; 0: no more.
  NVLLM_HOST_DEVICE std::uint64_t alternative(std::int64_t i) const {
    const std::int32_t id = words[3 + i];
    if (id < 0) return 0;
    return candidate(float_of_bits(static_cast<std::uint32_t>(words[3 + alternatives + i])),
                  static_cast<std::uint32_t>(id));
  }
  NVLLM_HOST_DEVICE void set_alternative(std::int64_t i, std::uint64_t value) const {
    words[3 + i] = value == 0 ? -1 : static_cast<std::int32_t>(id_of_candidate(value));
    words[3 + alternatives + i] = static_cast<std::int32_t>(bits_of_float(score_of_candidate(value)));
  }
};

// The records of one row, of all parts.
struct RowRecords {
  std::int32_t* all;
  std::int64_t parts, rows, row, alternatives;

  NVLLM_HOST_DEVICE RecordView of(std::int64_t part) const {
    return {all + (part * rows + row) * logprob_record_words(alternatives), alternatives};
  }
  NVLLM_HOST_DEVICE float max_of() const {
    float maximum = of(0).max_of();
    for (std::int64_t part = 1; part < parts; ++part) {
      const float theirs = of(part).max_of();
      maximum = theirs > maximum ? theirs : maximum;
    }
    return maximum;
  }
  NVLLM_HOST_DEVICE float token_logit() const {
    for (std::int64_t part = 0; part < parts; ++part) {
      const float logit = of(part).token_logit();
      if (logit == logit) return logit;
    }
    return -std::numeric_limits<float>::infinity();
  }
};

}  // namespace nvllm::kernels
