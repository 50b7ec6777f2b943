// What backends share of filtering.
#pragma once

#include "kernels/common/on_both.h"
#include "kernels/sampling/sampling_math.h"
#include "kernels/sampling/top_k_top_p.h"

namespace nvllm::kernels {

NVLLM_HOST_DEVICE bool truncates(const SlotParams& params) {
  return (params.flags & SlotParams::kTruncates) != 0 && params.inverse_temperature != 0;
}

// Of the probability relative to the highest's, the logarithm.
NVLLM_HOST_DEVICE float distance(float logit, float maximum, const SlotParams& params) {
  return (logit - maximum) * params.inverse_temperature;
}

// The lowest key that min_p keeps.
NVLLM_HOST_DEVICE std::uint32_t min_p_threshold(float maximum, const SlotParams& params) {
  std::uint32_t kept = order_key(maximum), dropped = kLowestKey - 1;
  while (kept - dropped > 1) {
    const std::uint32_t middle = dropped + (kept - dropped) / 2;
    const bool keeps = distance(value_of_key(middle), maximum, params) >= params.log_min_p;
    (keeps ? kept : dropped) = middle;
  }
  return kept;
}

// How a row's filtering begins, when its highest logit's key is known.
NVLLM_HOST_DEVICE TruncationState premixed(std::uint32_t maximum, const SlotParams& params) {
  TruncationState row;
  row.threshold = kLowestKey;
  if (!truncates(params)) return row;
  row.maximum = value_of_key(maximum);
  if (maximum <= kLowestKey || maximum >= kHighestKey) {
    // Infinite, or all NaN: only equals of the highest can be drawn.
    row.threshold = maximum < kLowestKey ? kLowestKey : maximum;
    return row;
  }
  row.active = 1;
  if (params.has_min_p != 0) row.threshold = min_p_threshold(row.maximum, params);
  return row;
}

// Whether a row takes part in a round.
NVLLM_HOST_DEVICE bool takes_part(const TruncationState& row, const SlotParams& params, TruncationKind kind,
                              int round) {
  const bool wanted_here = kind == TruncationKind::top_k ? params.top_k > 0 : params.top_p != 0;
  return wanted_here && row.active != 0 && (round == 0 || row.wanted != 0);
}

// The order keys that a round divides into bins.
struct KeyRange {
  std::uint32_t low, high;
  NVLLM_HOST_DEVICE bool holds(std::uint32_t key) const { return key >= low && key <= high; }
};
NVLLM_HOST_DEVICE KeyRange keys_of_round(const TruncationState& row, int round) {
  KeyRange keys{kLowestKey, kHighestKey};
  if (round > 0) {
    const int shift = truncation_shift(round - 1);
    keys.low = row.prefix << shift;
    keys.high = keys.low + ((std::uint32_t{1} << shift) - 1);
  }
  if (keys.low < row.threshold) keys.low = row.threshold;
  if (keys.high > kHighestKey) keys.high = kHighestKey;
  return keys;
}

// What a row wants of everything that is left, `total`; 0: all of it.
NVLLM_HOST_DEVICE std::uint64_t wanted_of(std::uint64_t total, const SlotParams& params,
                                      TruncationKind kind) {
  if (kind == TruncationKind::top_k) {
    const auto k = static_cast<std::uint64_t>(params.top_k);
    return total >= k ? k : 0;
  }
  const std::uint64_t share =
      (total >> 32) * params.top_p + ((total & 0xffffffffu) * params.top_p >> 32);
  return share > 0 ? share : 1;
}

// The row after a round whose boundary fell in `bin`, with `above` in the bins above it.
NVLLM_HOST_DEVICE TruncationState chosen(TruncationState row, std::uint32_t bin, std::uint64_t above, int round) {
  row.prefix = round == 0 ? bin : row.prefix << (round == 1 ? 11 : 10) | bin;
  row.wanted -= above;
  if (round == kTruncationRounds - 1) row.threshold = row.prefix;
  return row;
}

}  // namespace nvllm::kernels
