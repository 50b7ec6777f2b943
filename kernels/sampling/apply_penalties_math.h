// What backends share of adjusting logits.
#pragma once

#include <limits>

#include "kernels/common/on_both.h"
#include "kernels/sampling/apply_penalties.h"
#include "kernels/sampling/sampling_math.h"

namespace nvllm::kernels {

// A row with its rules' lists and its history.
struct RowHistory {
  const std::int32_t* tokens;  // by blocks
  const std::int32_t* table;   // of this row
  std::int64_t block_size;

  NVLLM_HOST_DEVICE std::int32_t at(std::int64_t position) const {
    return tokens[table[position / block_size] * block_size + position % block_size];
  }
};

struct RowLists {
  const std::int32_t* ends;
  const std::int32_t* bias_ids;
  const float* biases;
  const std::int32_t* word_ends;
  const std::int32_t* word_tokens;

  NVLLM_HOST_DEVICE RowLists(const std::int32_t* words, const SlotParams& params)
      : ends(words),
        bias_ids(ends + params.ends),
        biases(reinterpret_cast<const float*>(bias_ids + params.biases)),
        word_ends(bias_ids + 2 * params.biases),
        word_tokens(word_ends + params.bad_words) {}

  // The token that would complete the bad word; -1: the history does not end with its others.
  NVLLM_HOST_DEVICE std::int32_t banned_by(int word, const RowHistory& history,
                                       std::int64_t position) const {
    const std::int32_t begin = word == 0 ? 0 : word_ends[word - 1];
    const std::int32_t last = word_ends[word] - 1;
    const std::int64_t first_position = position - (last - begin);
    if (first_position < 0) return -1;
    for (std::int32_t i = begin; i < last; ++i) {
      if (history.at(first_position + (i - begin)) != word_tokens[i]) return -1;
    }
    return word_tokens[last];
  }
};

inline constexpr float kOutOfTheQuestion = -std::numeric_limits<float>::infinity();

// How often a token is in the answer, and whether it is in the prompt.
inline constexpr std::uint32_t kInPrompt = 0x80000000u;

NVLLM_HOST_DEVICE float penalized(float logit, std::uint32_t seen, const SlotParams& params) {
  if (seen == 0) return logit;
  const float repetition = params.repetition_penalty;
  // Dividing by 1 leaves everything as it is.
  logit = logit > 0 ? logit / repetition : logit * repetition;
  const std::uint32_t count = seen & ~kInPrompt;
  if (count == 0) return logit;
  logit = fused(-params.frequency_penalty, static_cast<float>(count), logit);
  return logit - params.presence_penalty;
}

}  // namespace nvllm::kernels
